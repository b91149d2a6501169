//! From the bytes of a log file to the bytes that a client gets: lines joined and cut as asked, nothing else changed
//! (upstream `cri-client/pkg/logs` ReadLogs and logWriter, less the reading).
//!
//! The file comes in pieces of any size. A line that fits in [`MAX_WHOLE`] is judged when all of it is there, so that of
//! one that never ends nothing is shown; a longer one is passed on as it comes, so that no line is too long for memory.

use super::line::{self, Head, Stream};
use super::options::Streams;
use super::stamp::{Moment, Stamp};

/// A line up to this length is held until its end has come. Runtimes cut lines at 16 KiB unless they are told otherwise.
pub const MAX_WHOLE: usize = 64 * 1024;
/// The same for a line in docker's format, which can only be read as a whole. Docker cuts what it holds at 16 KiB.
pub const MAX_OBJECT: usize = 1024 * 1024;
/// So much of a line that is of no known form is quoted.
const MAX_QUOTED: usize = 256;

/// What of the log is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Lines before this moment are left out.
    pub since: Option<Moment>,
    /// Each line begins with its time; what continues a line does not.
    pub timestamps: bool,
    /// Bytes of output.
    pub limit: Option<u64>,
    /// Lines of the file; those that are left out count too.
    pub lines: Option<u64>,
    pub streams: Streams,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Cri,
    Docker,
}

/// Where in the file the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the beginning of a line, or in one that is held.
    Line,
    /// In the text of a long line.
    Long { shown: bool, partial: bool },
    /// In a line that is left out because it cannot be read.
    Junk,
}

/// See the module.
#[derive(Debug)]
pub struct Transcript {
    rules: Rules,
    format: Option<Format>,
    held: Vec<u8>,
    place: Place,
    /// The next text begins a line of the output.
    begins_line: bool,
    malformed: u64,
    done: bool,
}

impl Transcript {
    pub fn new(rules: Rules) -> Self {
        Transcript {
            rules,
            format: None,
            held: Vec::new(),
            place: Place::Line,
            begins_line: true,
            malformed: 0,
            done: rules.lines == Some(0),
        }
    }

    /// Nothing more is wanted: a limit is reached, or the file is no log.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// How many lines were left out because they cannot be read.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Takes the next bytes of the file and appends what comes of them.
    pub fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !self.done && !input.is_empty() {
            let end = memchr::memchr(b'\n', input).map(|at| at + 1);
            let (piece, rest) = input.split_at(end.unwrap_or(input.len()));
            input = rest;
            match self.place {
                Place::Line if end.is_some() && self.held.is_empty() => self.line(piece, out),
                Place::Line => {
                    self.held.extend_from_slice(piece);
                    if end.is_some() {
                        let line = std::mem::take(&mut self.held);
                        self.line(&line, out);
                    } else if self.held.len() > MAX_WHOLE {
                        self.long(out);
                    }
                }
                Place::Long { shown, partial } => self.go_on(piece, end.is_some(), shown, partial, out),
                Place::Junk if end.is_some() => self.place = Place::Line,
                Place::Junk => {}
            }
        }
    }

    /// The file ends here for good: an unfinished line is shown as it is.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let line = std::mem::take(&mut self.held);
        if !self.done && !line.is_empty() {
            self.line(&line, out);
        }
        self.place = Place::Line;
    }

    /// The file begins anew: of an unfinished line nothing is shown.
    pub fn restart(&mut self) {
        self.held = Vec::new();
        self.place = Place::Line;
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let head = line::cri_head(line);
        let format = match (self.format, &head) {
            (Some(format), _) => format,
            (None, Some(_)) => Format::Cri,
            (None, None) if line::docker(line).is_some() => Format::Docker,
            (None, None) => return self.no_log(line, out),
        };
        self.format = Some(format);
        match (format, head) {
            (Format::Cri, Some(head)) => {
                let text = line.get(head.length..).unwrap_or_default();
                let text = if head.partial { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
                if self.is_wanted(head.stamp, head.stream) {
                    self.show(head.stamp, text, out);
                }
                self.ends(text.last().copied());
            }
            (Format::Cri, None) => self.malformed += 1,
            (Format::Docker, _) => match line::docker(line) {
                None => self.malformed += 1,
                Some(line) if self.is_old(line.stamp) => self.ends(line.text.last().copied()),
                Some(line) => match line.stream {
                    Err(name) => {
                        out.extend_from_slice(format!("unexpected stream type {name:?}").as_bytes());
                        self.done = true;
                    }
                    Ok(stream) => {
                        if self.is_wanted(line.stamp, stream) {
                            self.show(line.stamp, &line.text, out);
                        }
                        self.ends(line.text.last().copied());
                    }
                },
            },
        }
    }

    /// What is held is too long to be held: its head decides what becomes of the rest.
    fn long(&mut self, out: &mut Vec<u8>) {
        match (self.format, line::cri_head(&self.held)) {
            (None | Some(Format::Cri), Some(Head { stamp, stream, partial, length })) => {
                self.format = Some(Format::Cri);
                let held = std::mem::take(&mut self.held);
                let shown = self.is_wanted(stamp, stream);
                self.place = Place::Long { shown, partial };
                if shown {
                    self.show(stamp, held.get(length..).unwrap_or_default(), out);
                }
            }
            (None, None) if self.held.first() != Some(&b'{') || self.held.len() > MAX_OBJECT => {
                let held = std::mem::take(&mut self.held);
                self.no_log(&held, out);
            }
            (None, None) => {}
            (Some(Format::Docker), _) if self.held.len() <= MAX_OBJECT => {}
            (Some(_), _) => {
                self.malformed += 1;
                self.held = Vec::new();
                self.place = Place::Junk;
            }
        }
    }

    /// The next piece of a long line; `last` has its newline.
    fn go_on(&mut self, piece: &[u8], last: bool, shown: bool, partial: bool, out: &mut Vec<u8>) {
        let text = if last && partial { piece.strip_suffix(b"\n").unwrap_or(piece) } else { piece };
        if shown {
            self.write(text, out);
        }
        if last {
            self.place = Place::Line;
            self.ends(Some(if partial { 0 } else { b'\n' }));
        }
    }

    fn is_old(&self, stamp: Stamp) -> bool {
        self.rules.since.is_some_and(|since| stamp.moment() < since)
    }

    fn is_wanted(&self, stamp: Stamp, stream: Stream) -> bool {
        let stream_wanted = match self.rules.streams {
            Streams::All => true,
            Streams::Stdout => stream == Stream::Stdout,
            Streams::Stderr => stream == Stream::Stderr,
        };
        stream_wanted && !self.is_old(stamp)
    }

    fn show(&mut self, stamp: Stamp, text: &[u8], out: &mut Vec<u8>) {
        if self.rules.timestamps && self.begins_line {
            let mut prefix = Vec::with_capacity(36);
            stamp.write(&mut prefix);
            prefix.push(b' ');
            self.write(&prefix, out);
        }
        self.write(text, out);
    }

    /// Appends, up to the limit.
    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.done {
            return;
        }
        let mut bytes = bytes;
        if let Some(left) = &mut self.rules.limit {
            let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
            bytes = bytes.get(..taken).unwrap_or_default();
            *left -= taken as u64;
            self.done = *left == 0;
        }
        out.extend_from_slice(bytes);
    }

    /// A line of the file is over; `last` is the last byte of its text. One without text ends the output's line too, as
    /// upstream has it.
    fn ends(&mut self, last: Option<u8>) {
        self.begins_line = last.is_none_or(|byte| byte == b'\n');
        if let Some(left) = &mut self.rules.lines {
            *left = left.saturating_sub(1);
            self.done |= *left == 0;
        }
    }

    fn no_log(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let quoted = String::from_utf8_lossy(line.get(..MAX_QUOTED).unwrap_or(line));
        let text = format!("failed to get parse function: unsupported log format: {quoted:?}");
        out.extend_from_slice(text.as_bytes());
        self.done = true;
    }
}

#[cfg(test)]
#[path = "transcript_tests.rs"]
mod tests;
