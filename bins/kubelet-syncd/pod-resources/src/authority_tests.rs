use proptest::prelude::*;

use super::*;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn rewritten(parts: &[&[u8]]) -> Vec<u8> {
    let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
    for part in parts {
        rewriter.take(part, &mut out);
    }
    out
}

/// What becomes of one frame behind the preface and a SETTINGS.
fn one(frame_before: &[u8]) -> Vec<u8> {
    let before = [PREFACE, &frame(4, 0, 0, &[])].concat();
    rewritten(&[&before, frame_before])[before.len()..].to_vec()
}

/// `%2Fvar%2Flib%2Fkubelet%2Fpod-resources%2Fkubelet.sock` in Huffman's code with its length, as Go's library writes it.
const GO: &[u8] =
    b"\xa6\x54\x58\x7b\x8e\xc5\x45\x86\x83\x46\xa8\xb0\xf5\xb6\x32\xd0\x54\xaa\x2c\x35\x9e\x45\xac\x2a\x0f\x6d\x84\
    \x2a\x15\x16\x1e\xb6\xc6\x5a\x0a\x95\xd0\x72\x75";
/// POST, http.
const BEFORE: &[u8] = b"\x83\x86";
/// A path that is not indexed, `te: trailers` that is, and a content type of the table.
const AFTER: &[u8] = b"\x04\x02/P\x40\x02te\x08trailers\xbf";

#[test]
fn an_authority_becomes_one_letter_and_nothing_else_changes() {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat();
    let letter = b"\x01x";
    let padded = |block: &[u8]| [&[3], block, &[0; 3]].concat();
    let after_priority = |block: &[u8]| [&[0, 0, 0, 0, 16], block].concat();
    // Indexed, not indexed and never indexed; the name from the table, or spelt out.
    let spelt = |kind: u8, name: usize| [&[kind], SPELT[name]].concat();
    for (name, value) in [
        (vec![0x41], GO.to_vec()),
        (vec![0x01], text("/a.sock")),
        (vec![0x11], text("localhost")),
        (vec![0x41], text("")),
        (spelt(0x40, 1), GO.to_vec()),
        (spelt(0x00, 0), text("/a.sock")),
    ] {
        let block = |value: &[u8]| [BEFORE, &name, value, AFTER].concat();
        let (before, after) = (block(&value), block(letter));
        for (flags, before, after) in [
            (0x04, before.clone(), after.clone()),
            // What CONTINUATION goes on with.
            (0x00, before.clone(), after.clone()),
            (0x0c, padded(&before), padded(&after)),
            (0x24, after_priority(&before), after_priority(&after)),
            (0x2d, padded(&after_priority(&before)), padded(&after_priority(&after))),
        ] {
            let (given, expected) = (frame(HEADERS, flags, 5, &before), frame(HEADERS, flags, 5, &after));
            assert_eq!(one(&given), expected, "{name:x?} {flags:x} {value:?}");
        }
    }
}

#[test]
fn what_has_no_authority_that_can_be_read_stays() {
    let long = [&[0x01, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..], b"rest"].concat();
    for payload in [
        &b""[..],
        // From the table.
        b"\x83\x86\xc0\xbf",
        // Trailers: a field with a new name, and a new size of the table before it.
        b"\x3f\xe1\x1f\x40\x01a\x01b",
        // The name is another one.
        b"\x83\x04\x02/P",
        b"\x83\x41\x09short",
        b"\x83\x41",
        &long,
    ] {
        let given = frame(HEADERS, 0x04, 1, payload);
        assert_eq!(one(&given), given, "{payload:x?}");
    }
    // More padding than there is.
    let given = frame(HEADERS, 0x0c, 1, b"\x09\x83\x41\x01/");
    assert_eq!(one(&given), given);
    // Other frames, and one that is too large.
    for (kind, length) in [(0, 3), (9, 3), (0, 70_000), (HEADERS, PAYLOAD_MAX + 1)] {
        let given = frame(kind, 0x04, 1, &b"\x41\x01/".repeat(length / 3 + 1)[..length]);
        assert_eq!(one(&given), given, "{kind} {length}");
    }
    let other = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(rewritten(&[other]), other);
    assert_eq!(rewritten(&[&other[..2]]), &other[..2], "it is not waited for more");
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        Just([BEFORE, b"\x41", GO, AFTER].concat()),
        Just([BEFORE, AFTER].concat()),
    ];
    let one = (prop_oneof![Just(HEADERS), any::<u8>()], any::<u8>(), payload);
    let frames = prop::collection::vec(one, 0..6);
    let rest = prop::collection::vec(any::<u8>(), 0..20);
    (frames, rest).prop_map(|(frames, rest)| {
        let frames: Vec<Vec<u8>> = frames.iter().map(|(kind, flags, bytes)| frame(*kind, *flags, 1, bytes)).collect();
        [PREFACE, &frames.concat(), &rest].concat()
    })
}

proptest! {
    #[test]
    fn however_it_is_cut_it_is_the_same(bytes in stream(), cuts in prop::collection::vec(0_usize..400, 0..12)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
        prop_assert_eq!(rewritten(&parts), rewritten(&[&bytes]));
    }

    #[test]
    fn frames_stay_frames(bytes in stream()) {
        let heads = |mut bytes: &[u8]| {
            let mut heads = Vec::new();
            bytes = &bytes[PREFACE.len()..];
            while bytes.len() >= HEAD {
                let length = bytes[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                let Some(rest) = bytes.get(HEAD + length..) else { break };
                heads.push((bytes[3], bytes[4], bytes[5..9].to_vec()));
                bytes = rest;
            }
            heads
        };
        prop_assert_eq!(heads(&rewritten(&[&bytes])), heads(&bytes));
    }

    #[test]
    fn anything_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut frame = vec![0; HEAD];
        frame.extend(&bytes);
        for flags in [0, PADDED, PRIORITY, PADDED | PRIORITY] {
            frame[4] = flags;
            if let Some(value) = authority(&frame) {
                prop_assert!(value.start < value.end && value.end <= frame.len());
            }
        }
        rewritten(&[&bytes]);
    }
}
