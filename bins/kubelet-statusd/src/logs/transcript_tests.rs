//! Tables, and every way of cutting a file into pieces.

use proptest::prelude::*;

use super::*;

const ALL: Rules = Rules { since: None, timestamps: false, limit: None, lines: None, streams: Streams::All };

fn time(second: u32) -> String {
    format!("2026-01-02T03:04:{second:02}.5Z")
}

fn cri(second: u32, stream: &str, tag: &str, text: &str) -> String {
    format!("{} {stream} {tag} {text}\n", time(second))
}

fn at(second: u32) -> Option<Moment> {
    Some(Stamp::parse(time(second).as_bytes()).unwrap().moment())
}

fn shown(rules: Rules, pieces: &[&[u8]]) -> String {
    let (mut transcript, mut out) = (Transcript::new(rules), Vec::new());
    for piece in pieces {
        transcript.feed(piece, &mut out);
    }
    transcript.finish(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn lines_are_joined_stamped_and_cut() {
    let file = [
        cri(1, "stdout", "F", "one"),
        cri(2, "stderr", "P", "two, "),
        cri(3, "stderr", "P", "still, "),
        cri(4, "stderr", "F", "over"),
        "torn".to_owned() + "\n",
        cri(5, "stdout", "F", ""),
        cri(6, "stdout", "F", "six"),
    ]
    .concat();
    let stamp = |second: u32| format!("2026-01-02T03:04:{second:02}.500000000Z ");
    for (rules, expected) in [
        (ALL, "one\ntwo, still, over\n\nsix\n".to_owned()),
        (
            Rules { timestamps: true, ..ALL },
            format!("{}one\n{}two, still, over\n{}\n{}six\n", stamp(1), stamp(2), stamp(5), stamp(6)),
        ),
        (Rules { since: at(3), ..ALL }, "still, over\n\nsix\n".to_owned()),
        (Rules { since: at(4), timestamps: true, ..ALL }, format!("over\n{}\n{}six\n", stamp(5), stamp(6))),
        (Rules { since: at(7), ..ALL }, String::new()),
        (Rules { limit: Some(6), ..ALL }, "one\ntw".to_owned()),
        (Rules { limit: Some(4), ..ALL }, "one\n".to_owned()),
        (Rules { limit: Some(1000), ..ALL }, "one\ntwo, still, over\n\nsix\n".to_owned()),
        (Rules { limit: Some(34), timestamps: true, ..ALL }, stamp(1) + "one"),
        (Rules { limit: Some(10), timestamps: true, ..ALL }, "2026-01-02".to_owned()),
        (Rules { lines: Some(0), ..ALL }, String::new()),
        (Rules { lines: Some(2), ..ALL }, "one\ntwo, ".to_owned()),
        // What cannot be read does not count, what is left out does.
        (Rules { lines: Some(5), ..ALL }, "one\ntwo, still, over\n\n".to_owned()),
        (Rules { lines: Some(5), since: at(5), ..ALL }, "\n".to_owned()),
        (Rules { streams: Streams::Stdout, ..ALL }, "one\n\nsix\n".to_owned()),
        (Rules { streams: Streams::Stderr, limit: Some(7), ..ALL }, "two, st".to_owned()),
    ] {
        assert_eq!(shown(rules, &[file.as_bytes()]), expected, "{rules:?}");
    }
    let mut transcript = Transcript::new(ALL);
    transcript.feed(file.as_bytes(), &mut Vec::new());
    assert_eq!(transcript.malformed(), 1);
}

#[test]
fn dockers_format() {
    let line = |second: u32, stream: &str, text: &str| {
        format!("{{\"log\":{text:?},\"stream\":\"{stream}\",\"time\":\"{}\"}}\n", time(second))
    };
    let file = line(1, "stdout", "a\n") + &line(2, "stderr", "b") + &line(3, "stderr", "c\n") + "torn\n";
    assert_eq!(shown(ALL, &[file.as_bytes()]), "a\nbc\n");
    assert_eq!(shown(Rules { since: at(2), ..ALL }, &[file.as_bytes()]), "bc\n");
    assert_eq!(shown(Rules { lines: Some(2), ..ALL }, &[file.as_bytes()]), "a\nb");
    let stamped = shown(Rules { timestamps: true, ..ALL }, &[file.as_bytes()]);
    assert_eq!(stamped, "2026-01-02T03:04:01.500000000Z a\n2026-01-02T03:04:02.500000000Z bc\n");
    let strange = file.clone() + &line(4, "stdin", "x\n") + &line(5, "stdout", "y\n");
    assert_eq!(shown(ALL, &[strange.as_bytes()]), "a\nbc\nunexpected stream type \"stdin\"");
    let long = "x".repeat(3 * MAX_WHOLE);
    let file = line(1, "stdout", &long) + &line(2, "stdout", &"y".repeat(2 * MAX_OBJECT)) + &line(3, "stdout", "z");
    let pieces: Vec<&[u8]> = file.as_bytes().chunks(4096).collect();
    assert_eq!(shown(ALL, &pieces), long + "z", "what is too long is left out");
}

#[test]
fn a_file_that_is_no_log_is_an_error_and_ends_the_stream() {
    for (file, quoted) in [
        ("hello\nworld\n".to_owned(), "hello\\n".to_owned()),
        ("hello".to_owned(), "hello".to_owned()),
        ("x".repeat(10 * MAX_WHOLE), "x".repeat(MAX_QUOTED)),
    ] {
        let expected = format!("failed to get parse function: unsupported log format: \"{quoted}\"");
        assert_eq!(shown(ALL, &[file.as_bytes()]), expected);
    }
    assert_eq!(shown(ALL, &[]), "");
}

#[test]
fn long_lines_pass_through_and_unfinished_ones_wait() {
    let text = "0123456789".repeat(MAX_WHOLE / 4);
    let file = cri(1, "stdout", "F", &text) + &cri(2, "stdout", "P", &text) + &cri(3, "stdout", "F", "end");
    let whole = format!("{text}\n{text}end\n");
    for size in [1000, MAX_WHOLE, file.len()] {
        let pieces: Vec<&[u8]> = file.as_bytes().chunks(size).collect();
        assert_eq!(shown(ALL, &pieces), whole, "pieces of {size}");
        assert_eq!(shown(Rules { limit: Some(100_000), ..ALL }, &pieces), whole[..100_000]);
        assert_eq!(shown(Rules { since: at(3), ..ALL }, &pieces), "end\n");
        assert_eq!(shown(Rules { lines: Some(2), ..ALL }, &pieces), format!("{text}\n{text}"));
    }
    let (mut transcript, mut out) = (Transcript::new(ALL), Vec::new());
    for piece in file.as_bytes()[..file.len() / 2].chunks(1000) {
        transcript.feed(piece, &mut out);
        assert!(transcript.held.len() <= MAX_WHOLE + 1000);
    }

    let (mut transcript, mut out) = (Transcript::new(ALL), Vec::new());
    transcript.feed(time(1).as_bytes(), &mut out);
    transcript.feed(b" stdout F be", &mut out);
    assert_eq!(out, b"", "nothing of a line before its end");
    transcript.restart();
    transcript.feed(cri(1, "stdout", "F", "new").as_bytes(), &mut out);
    assert_eq!(out, b"new\n");
    transcript.feed(time(2).as_bytes(), &mut out);
    transcript.feed(b" stdout F cut", &mut out);
    transcript.finish(&mut out);
    assert_eq!(out, b"new\ncut");
}

/// Upstream's way: the whole file, line by line.
fn plainly(rules: Rules, file: &[u8]) -> Vec<u8> {
    let (mut out, mut begins, mut lines) = (Vec::new(), true, rules.lines.unwrap_or(u64::MAX));
    let limit = usize::try_from(rules.limit.unwrap_or(u64::MAX)).unwrap();
    for line in file.split_inclusive(|byte| *byte == b'\n') {
        if lines == 0 {
            break;
        }
        let Some(head) = line::cri_head(line) else { continue };
        let mut text = line[head.length..].to_vec();
        if head.partial && text.last() == Some(&b'\n') {
            text.pop();
        }
        let wanted = match rules.streams {
            Streams::All => true,
            Streams::Stdout => head.stream == Stream::Stdout,
            Streams::Stderr => head.stream == Stream::Stderr,
        };
        if wanted && rules.since.is_none_or(|since| head.stamp.moment() >= since) {
            if rules.timestamps && begins {
                head.stamp.write(&mut out);
                out.push(b' ');
            }
            out.extend_from_slice(&text);
            if out.len() >= limit {
                out.truncate(limit);
                return out;
            }
        }
        lines -= 1;
        begins = text.is_empty() || text.last() == Some(&b'\n');
    }
    out
}

fn some_file() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        8 => prop::collection::vec(any::<u8>().prop_filter("a line", |byte| *byte != b'\n'), 0..40),
        1 => (MAX_WHOLE - 200..MAX_WHOLE * 2).prop_map(|length| vec![b'x'; length]),
    ];
    let line = (0..60_u32, prop::bool::ANY, prop_oneof!["F", "P", "P:x", "F:P"], text, 0..12_u8);
    prop::collection::vec(line, 0..12).prop_map(|lines| {
        let mut file = Vec::new();
        for (index, (second, stdout, tag, text, kind)) in lines.into_iter().enumerate() {
            if kind > 0 || index == 0 {
                let stream = if stdout { "stdout" } else { "stderr" };
                file.extend_from_slice(format!("{} {stream} {tag} ", time(second)).as_bytes());
            }
            file.extend_from_slice(&text);
            file.push(b'\n');
        }
        file
    })
}

fn some_rules() -> impl Strategy<Value = Rules> {
    let streams = prop_oneof![3 => Just(Streams::All), 1 => Just(Streams::Stdout), 1 => Just(Streams::Stderr)];
    let since = prop::option::of((0..60_u32).prop_map(|second| at(second).unwrap()));
    let limit = prop::option::of(1..200_000_u64);
    (since, any::<bool>(), limit, prop::option::of(0..12_u64), streams)
        .prop_map(|(since, timestamps, limit, lines, streams)| Rules { since, timestamps, limit, lines, streams })
}

proptest! {
    #[test]
    fn pieces_do_not_matter(file in some_file(), rules in some_rules(), sizes in prop::collection::vec(1..100_000_usize, 1..20), torn in 0..5_usize) {
        let file = &file[..file.len().saturating_sub(torn)];
        let first = file.split_inclusive(|byte| *byte == b'\n').next();
        prop_assume!(first.is_none_or(|line| line::cri_head(line).is_some()));
        let (mut transcript, mut out) = (Transcript::new(rules), Vec::new());
        let (mut rest, mut sizes) = (file, sizes.iter().cycle());
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
            transcript.feed(piece, &mut out);
            rest = tail;
        }
        transcript.finish(&mut out);
        prop_assert!(out == plainly(rules, file));
    }

    #[test]
    fn nothing_panics(pieces in prop::collection::vec(any::<Vec<u8>>(), 0..6), rules in some_rules()) {
        let (mut transcript, mut out) = (Transcript::new(rules), Vec::new());
        for piece in pieces {
            transcript.feed(&piece, &mut out);
        }
        transcript.finish(&mut out);
    }
}
