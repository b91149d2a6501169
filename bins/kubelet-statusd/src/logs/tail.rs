//! Where the last lines of a file begin, found from its end in blocks (upstream `cri-client/pkg/logs` tail.go). A last
//! line without its newline does not count as one.

use std::io;

/// Read at once.
pub const BLOCK: usize = 64 * 1024;

/// The search, a block a step, so that one through a huge file can be left.
#[derive(Debug)]
pub struct Search {
    /// Everything from here on has been looked at.
    position: u64,
    /// Newlines to be found yet; the last of them ends the line before the wanted ones.
    left: u64,
}

impl Search {
    /// For the last `lines` lines of a file of `size` bytes.
    pub fn new(size: u64, lines: u64) -> Self {
        Search { position: size, left: lines.saturating_add(1) }
    }

    /// Looks at one more block; the position once it is found. `read_at` fills the buffer from a place in the file as
    /// far as the file goes.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn step(&mut self, read_at: impl FnOnce(&mut [u8], u64) -> io::Result<usize>) -> io::Result<Option<u64>> {
        if self.position == 0 {
            return Ok(Some(0));
        }
        let start = self.position.saturating_sub(BLOCK as u64);
        let mut block = vec![0; usize::try_from(self.position - start).unwrap_or(BLOCK).min(BLOCK)];
        let filled = read_at(&mut block, start)?;
        block.truncate(filled);
        for newline in memchr::memrchr_iter(b'\n', &block) {
            self.left -= 1;
            if self.left == 0 {
                return Ok(Some(start + newline as u64 + 1));
            }
        }
        self.position = start;
        Ok((start == 0).then_some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start(file: &[u8], lines: u64) -> u64 {
        let mut search = Search::new(file.len() as u64, lines);
        loop {
            let found = search.step(|block, at| {
                let rest = &file[usize::try_from(at).unwrap()..];
                let length = rest.len().min(block.len());
                block[..length].copy_from_slice(&rest[..length]);
                Ok(length)
            });
            if let Some(start) = found.unwrap() {
                return start;
            }
        }
    }

    #[test]
    fn table() {
        for (file, lines, expected) in [
            ("", 0, 0),
            ("", 5, 0),
            ("a\nb\nc\n", 0, 6),
            ("a\nb\nc\n", 1, 4),
            ("a\nb\nc\n", 2, 2),
            ("a\nb\nc\n", 3, 0),
            ("a\nb\nc\n", u64::MAX, 0),
            ("a\nb\nc", 0, 4),
            ("a\nb\nc", 1, 2),
            ("abc", 1, 0),
            ("\n\n\n", 2, 1),
        ] {
            assert_eq!(start(file.as_bytes(), lines), expected, "{file:?} {lines}");
        }
        let block = "x".repeat(BLOCK - 1) + "\n";
        assert_eq!(start(block.repeat(3).as_bytes(), 1), 2 * BLOCK as u64);
        assert_eq!(start((block.repeat(3) + "\n").as_bytes(), 1), 3 * BLOCK as u64);
    }

    proptest! {
        #[test]
        fn as_counted_plainly(lengths in prop::collection::vec(prop_oneof![4 => 0..5_usize, 1 => 0..BLOCK * 2], 0..20), torn in 0..4_usize, lines in 0..25_u64) {
            let file: Vec<u8> = lengths.iter().flat_map(|length| "x".repeat(*length).into_bytes().into_iter().chain([b'\n'])).collect();
            let file = &file[..file.len().saturating_sub(torn)];
            let ends: Vec<u64> = file.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at as u64 + 1).collect();
            let before = usize::try_from(lines).unwrap() + 1;
            let expected = if ends.len() >= before { ends[ends.len() - before] } else { 0 };
            prop_assert_eq!(start(file, lines), expected);
        }
    }
}
