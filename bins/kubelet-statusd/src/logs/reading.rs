//! The part that reads: pieces of the file through the transcript, on a thread that may block.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use rustix::io::ReadWriteFlags;

use super::tail::Search;
use super::transcript::Transcript;

/// Read at once. What comes of it is no more, and that is what a client that does not take it holds in memory.
const CHUNK: usize = 32 * 1024;
/// Read at once by [`Reading::advance_at_once`]: a few lines, so that nobody else's turn is held up.
const GROWTH: usize = 4 * 1024;
/// So much is read in one go where nothing of it is wanted, before it is asked whether anybody still listens.
const STRETCH: usize = 32 * CHUNK;

/// A place in a file. Between two goes it holds no buffer, except for an unfinished line.
#[derive(Debug)]
pub struct Reading {
    pub file: Arc<File>,
    pub offset: u64,
    pub transcript: Transcript,
    /// There was nothing more in the file at the last go.
    pub at_end: bool,
    /// The last lines are still being looked for.
    search: Option<Search>,
    /// Of a file that was rotated and compressed; it is read from its beginning, once.
    inflated: Option<Box<MultiGzDecoder<Arc<File>>>>,
}

/// What one go gave.
#[derive(Debug)]
pub struct Piece {
    /// Empty where nothing of what was read is wanted.
    pub out: Vec<u8>,
    /// Anything was read at all.
    pub moved: bool,
}

impl Reading {
    /// From the beginning, or from the last `tail` lines on.
    ///
    /// # Errors
    /// The file's size is not told.
    pub fn new(file: File, transcript: Transcript, tail: Option<u64>) -> io::Result<Self> {
        let search = match tail {
            Some(lines) => Some(Search::new(file.metadata()?.len(), lines)),
            None => None,
        };
        Ok(Reading { file: Arc::new(file), offset: 0, transcript, at_end: false, search, inflated: None })
    }

    /// Goes on where it stands, until there is something to give. Blocks.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn advance(&mut self) -> io::Result<Piece> {
        let mut piece = Piece { out: Vec::new(), moved: false };
        for _ in 0..STRETCH / CHUNK {
            if let Some(search) = &mut self.search {
                let file = &self.file;
                if let Some(start) = search.step(|block, at| fill(file, block, at))? {
                    self.offset = start;
                    self.search = None;
                }
                continue;
            }
            if self.transcript.is_done() {
                break;
            }
            let mut chunk = vec![0; CHUNK];
            let read = match &mut self.inflated {
                None => {
                    let read = read(&self.file, &mut chunk, self.offset)?;
                    // A regular file gives less than is asked for at its end alone.
                    self.at_end = read < CHUNK;
                    read
                }
                Some(inflated) => {
                    let read = inflated.read(&mut chunk)?;
                    self.at_end = read == 0;
                    read
                }
            };
            piece.moved |= read > 0;
            self.offset += read as u64;
            self.transcript.feed(chunk.get(..read).unwrap_or_default(), &mut piece.out);
            if !piece.out.is_empty() || self.at_end {
                break;
            }
        }
        piece.out.shrink_to_fit();
        Ok(piece)
    }

    /// The same for a file that has grown by a little, without a thread of its own: only what the kernel has in memory is read
    /// (`RWF_NOWAIT`, preadv2(2)), and what was just written is. `None`: nothing was read, and [`Self::advance`] says why.
    pub fn advance_at_once(&mut self) -> Option<Piece> {
        if self.search.is_some() || self.inflated.is_some() || self.transcript.is_done() {
            return None;
        }
        let mut chunk = [0; GROWTH];
        let into = &mut [io::IoSliceMut::new(&mut chunk)];
        // Not in memory, interrupted, or a file system that cannot say.
        let read = rustix::io::preadv2(&self.file, into, self.offset, ReadWriteFlags::NOWAIT).ok()?;
        // Or the rest is not in memory: whether there is more, the file's size tells before anybody waits.
        self.at_end = read < GROWTH;
        self.offset += read as u64;
        let mut piece = Piece { out: Vec::new(), moved: read > 0 };
        self.transcript.feed(chunk.get(..read).unwrap_or_default(), &mut piece.out);
        piece.out.shrink_to_fit();
        Some(piece)
    }

    /// The file was cut: what was read is not there any more.
    pub fn begin_anew(&mut self) {
        self.offset = 0;
        self.transcript.restart();
    }

    /// Another file goes on where this one ended, compressed or not. Gives what is left of this one: a line without an end.
    pub fn go_on_in(&mut self, file: Arc<File>, is_compressed: bool) -> Vec<u8> {
        let mut out = Vec::new();
        self.transcript.finish(&mut out);
        self.inflated = is_compressed.then(|| Box::new(MultiGzDecoder::new(file.clone())));
        self.file = file;
        self.offset = 0;
        out
    }

    /// The file was compressed: it does not change, and its size says nothing of the place in it.
    pub fn is_compressed(&self) -> bool {
        self.inflated.is_some()
    }
}

fn read(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            answer => return answer,
        }
    }
}

/// As much of the buffer as the file has.
fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match read(file, rest, at + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}
