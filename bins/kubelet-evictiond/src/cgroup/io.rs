//! What cgroups did on block devices: `io.stat` of v2, `blkio.*` of v1. Pure.

use bulkhead_ipc::evictiond::CgroupIo;

/// `io.stat`: "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0 cost.usage=5". A device without figures has a line of
/// its number alone, and is left out.
pub fn v2(stat: &[u8]) -> Vec<CgroupIo> {
    let mut devices = Vec::new();
    for line in String::from_utf8_lossy(stat).lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some((major, minor)) = fields.next().and_then(number_of) else { continue };
        let mut io = CgroupIo { major, minor, ..CgroupIo::default() };
        let mut any = false;
        for (key, value) in fields.filter_map(|field| field.split_once('=')) {
            let Ok(value) = value.parse::<u64>() else { continue };
            any = true;
            match key {
                "rbytes" => {
                    io.read_bytes = Some(value);
                    io.bytes.insert("Read".into(), value);
                }
                "wbytes" => {
                    io.write_bytes = Some(value);
                    io.bytes.insert("Write".into(), value);
                }
                "rios" => io.reads = Some(value),
                "wios" => io.writes = Some(value),
                key => {
                    if let Some(cost) = key.strip_prefix("cost.") {
                        io.cost.insert(cost.to_owned(), value);
                    }
                }
            }
        }
        if any {
            devices.push(io);
        }
    }
    devices
}

/// Names of v1's two files (bytes, operations), from the best to the last resort: each scheduler counts in its own.
pub const V1_FILES: [[&str; 2]; 4] = [
    ["blkio.bfq.io_service_bytes_recursive", "blkio.bfq.io_serviced_recursive"],
    ["blkio.io_service_bytes_recursive", "blkio.io_serviced_recursive"],
    ["blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive"],
    ["blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"],
];

/// Whether a file of v1 has a device in it; the sum over none ("Total 0") is none.
pub fn v1_counts(file: &[u8]) -> bool {
    v1_lines(file).next().is_some()
}

/// The two files of v1: lines of "8:0 Read 123".
pub fn v1(bytes: &[u8], operations: &[u8]) -> Vec<CgroupIo> {
    let mut devices: Vec<CgroupIo> = Vec::new();
    for (number, operation, value) in v1_lines(bytes) {
        let io = entry(&mut devices, number);
        match operation {
            "Read" => io.read_bytes = Some(value),
            "Write" => io.write_bytes = Some(value),
            _ => {}
        }
        io.bytes.insert(operation.to_owned(), value);
    }
    for (number, operation, value) in v1_lines(operations) {
        let io = entry(&mut devices, number);
        match operation {
            "Read" => io.reads = Some(value),
            "Write" => io.writes = Some(value),
            _ => {}
        }
    }
    devices
}

fn v1_lines(text: &[u8]) -> impl Iterator<Item = ((u32, u32), &str, u64)> {
    std::str::from_utf8(text).unwrap_or_default().lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        Some((number_of(fields.next()?)?, fields.next()?, fields.next()?.parse().ok()?))
    })
}

fn entry(devices: &mut Vec<CgroupIo>, (major, minor): (u32, u32)) -> &mut CgroupIo {
    let at = devices.iter().position(|io| (io.major, io.minor) == (major, minor)).unwrap_or_else(|| {
        devices.push(CgroupIo { major, minor, ..CgroupIo::default() });
        devices.len() - 1
    });
    &mut devices[at]
}

fn number_of(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_v2() {
        let stat = b"259:0\n8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n\
                     8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6 cost.usage=70 cost.wait=8\n";
        let devices = v2(stat);
        assert_eq!(devices.len(), 2, "a device without figures is left out");
        assert_eq!((devices[0].major, devices[0].minor), (8, 16));
        assert_eq!((devices[0].read_bytes, devices[0].writes), (Some(1_459_200), Some(353)));
        assert_eq!(devices[0].bytes.len(), 2, "Read and Write, as on v1; what is discarded is not told");
        assert_eq!(devices[1].cost["usage"], 70);
        assert!(devices[0].cost.is_empty());
    }

    #[test]
    fn files_of_v1() {
        let bytes =
            b"8:0 Read 100\n8:0 Write 200\n8:0 Sync 300\n8:0 Async 0\n8:0 Discard 0\n8:0 Total 300\nTotal 300\n";
        let devices = v1(bytes, b"8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n");
        assert_eq!(devices.len(), 1);
        let io = &devices[0];
        assert_eq!((io.read_bytes, io.write_bytes, io.reads, io.writes), (Some(100), Some(200), Some(1), Some(2)));
        assert_eq!(io.bytes.len(), 6);
        assert!(v1_counts(bytes) && !v1_counts(b"Total 0\n"));
    }

    proptest! {
        #[test]
        fn nothing_makes_them_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (v1(&text, &text), v2(&text), v1_counts(&text));
        }
    }
}
