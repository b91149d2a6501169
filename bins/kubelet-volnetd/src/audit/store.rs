//! Records on the disk: lines in one file, and the file before it. A line that a power cut has torn is passed over.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::record::{Filter, Record};

/// The file that is written to, and the one before it.
const FILES: [&str; 2] = ["audit.jsonl", "audit.jsonl.1"];
/// Where the next file is begun; bytes. With some 250 bytes each two files hold the starts and ends of several hundred pods.
const FILE_MAX: u64 = 2 << 20;
/// No line of ours is longer.
const LINE_MAX: usize = 32 << 10;

/// Why records could not be kept or read.
#[derive(Debug, thiserror::Error)]
#[error("audit log {file}: {source}")]
pub struct StoreError {
    file: &'static str,
    source: io::Error,
}

#[derive(Debug)]
pub(super) struct Store {
    folder: OwnedFd,
    file: File,
    bytes: u64,
    next: u64,
}

impl Store {
    pub(super) fn open(folder: OwnedFd) -> Result<Self, StoreError> {
        let newest = |name| Ok::<_, StoreError>(lines(&folder, name, &Filter::default())?.back().map(|r| r.sequence));
        let last = newest(FILES[0])?.or(newest(FILES[1])?);
        let (file, bytes) = begin(&folder)?;
        Ok(Store { folder, file, bytes, next: last.map_or(1, |last| last.saturating_add(1)) })
    }

    /// Numbers the records and writes them with one call. On an error none of them counts as written.
    pub(super) fn append(&mut self, records: &mut [Record]) -> Result<(), StoreError> {
        if self.bytes >= FILE_MAX {
            self.turn()?;
        }
        let mut text = Vec::new();
        let mut next = self.next;
        for record in &mut *records {
            record.sequence = next;
            next += 1;
            serde_json::to_writer(&mut text, record).map_err(|error| at(FILES[0])(error.into()))?;
            text.push(b'\n');
        }
        if let Err(error) = self.file.write_all(&text) {
            // Of what was written in part nothing stays, where the disk lets us.
            if self.file.set_len(self.bytes).is_err() || self.file.seek(SeekFrom::End(0)).is_err() {
                tracing::debug!("a torn audit record stays");
            }
            return Err(at(FILES[0])(error));
        }
        self.bytes += text.len() as u64;
        self.next = next;
        Ok(())
    }

    /// Has it write elsewhere.
    #[cfg(test)]
    pub(super) fn replace_file(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    fn turn(&mut self) -> Result<(), StoreError> {
        rustix::fs::renameat(&self.folder, FILES[0], &self.folder, FILES[1])
            .map_err(|error| at(FILES[1])(error.into()))?;
        (self.file, self.bytes) = begin(&self.folder)?;
        Ok(())
    }

    /// Those that are wanted, the oldest first.
    pub(super) fn read(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        let mut records = lines(&self.folder, FILES[1], filter)?;
        records.extend(lines(&self.folder, FILES[0], filter)?);
        if let Some(newest) = filter.newest {
            records.drain(..records.len().saturating_sub(newest));
        }
        Ok(records.into())
    }
}

fn at(file: &'static str) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError { file, source }
}

/// The file to write to, at its end; after a torn line a new one begins.
fn begin(folder: &OwnedFd) -> Result<(File, u64), StoreError> {
    let error = at(FILES[0]);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(folder, FILES[0], flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(opened.map_err(|errno| error(errno.into()))?);
    let mut bytes = file.seek(SeekFrom::End(0)).map_err(&error)?;
    let mut last = [0; 1];
    if bytes > 0 {
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, bytes - 1).map_err(&error)?;
        if last != *b"\n" {
            file.write_all(b"\n").map_err(&error)?;
            bytes += 1;
        }
    }
    Ok((file, bytes))
}

fn lines(folder: &OwnedFd, name: &'static str, filter: &Filter) -> Result<VecDeque<Record>, StoreError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(VecDeque::new()),
        Err(errno) => return Err(at(name)(errno.into())),
    };
    let mut records = VecDeque::new();
    let mut reader = BufReader::new(io::Read::take(file, FILE_MAX + (4 << 20)));
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(at(name))? == 0 {
            return Ok(records);
        }
        let record = (line.len() <= LINE_MAX).then(|| serde_json::from_slice::<Record>(&line).ok()).flatten();
        if let Some(record) = record.filter(|record| filter.takes(record)) {
            records.push_back(record);
            if filter.newest.is_some_and(|newest| records.len() > newest) {
                records.pop_front();
            }
        }
    }
}
