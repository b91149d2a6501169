//! A container's log as it lies in its folder: the current file, and what was rotated from it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::Node;
use bulkhead_types::{LogForm, LogStamp, parse_rotated_log_name};

/// Writes numbered lines, so many bytes each: so many, then a pause in seconds, and again, until `/go/go` is there. Then it says how
/// many there were, and ends.
pub fn counting(line: usize, burst: u32, pause: &str) -> String {
    format!(
        "awk 'BEGIN {{ p = sprintf(\"%{line}s\", \"\"); for (i = 0; ; i++) {{ print i \" \" p; \
         if (i % {burst} == 0) {{ fflush(); if (system(\"[ -e /go/go ] || {{ sleep {pause}; false; }}\") == 0) break }} }} \
         print \"last \" i }}'"
    )
}

/// Files of one log.
#[derive(Debug, Clone, Default)]
pub struct LogFolder {
    pub current: Option<PathBuf>,
    /// Oldest first.
    pub rotated: Vec<(LogStamp, LogForm, PathBuf)>,
    /// Names that no file of a log has.
    pub strange: Vec<String>,
}

impl LogFolder {
    /// As they are now.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn read(node: &Node, pod: &str) -> Result<Self> {
        let folder = node.log_folders(pod).pop().context("no log folder")?.join("main");
        let mut found = LogFolder::default();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            match parse_rotated_log_name(&name) {
                Some((0, stamp, form)) => found.rotated.push((stamp, form, path)),
                None if name == "0.log" => found.current = Some(path),
                _ => found.strange.push(name),
            }
        }
        found.rotated.sort();
        Ok(found)
    }

    pub fn files(&self) -> usize {
        self.rotated.len() + usize::from(self.current.is_some())
    }

    /// Every rotated log in one form: compressed, but for the newest.
    ///
    /// # Errors
    /// It is otherwise, at the moment.
    pub fn is_settled(&self) -> Result<()> {
        ensure!(self.current.is_some() && self.strange.is_empty(), "{self:?}");
        let count = self.rotated.len();
        for (at, (_, form, path)) in self.rotated.iter().enumerate() {
            let expected = if at + 1 == count { LogForm::Plain } else { LogForm::Compressed };
            ensure!(*form == expected, "{} of {self:#?}", path.display());
        }
        Ok(())
    }

    /// The numbers of all lines, in the order of the files. What is written and rotated meanwhile may be missed.
    ///
    /// # Errors
    /// A file cannot be read, or a compressed one is not whole.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        let mut lines = Lines::default();
        for (_, _, path) in &self.rotated {
            lines.take(&content(path)?);
        }
        if let Some(current) = &self.current {
            lines.take(&content(current)?);
        }
        Ok(lines.numbers)
    }
}

/// Lines as the container wrote them: the runtime cuts one where it opens a new file.
#[derive(Debug, Default)]
struct Lines {
    numbers: Vec<u64>,
    begun: String,
}

impl Lines {
    fn take(&mut self, text: &str) {
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut fields = line.splitn(4, ' ').skip(2);
            let (Some(tag), Some(rest)) = (fields.next(), fields.next()) else { continue };
            self.begun += rest;
            if tag == "F" {
                let whole = std::mem::take(&mut self.begun);
                self.numbers.extend(whole.split(' ').next().and_then(|number| number.parse::<u64>().ok()));
            }
        }
    }
}

/// What a file of a log holds, unpacked.
///
/// # Errors
/// It cannot be read.
pub fn content(path: &Path) -> Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    if path.extension().is_some_and(|end| end == "gz") {
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).with_context(|| format!("{}", path.display()))?;
    } else {
        std::io::BufReader::new(file).read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Each once and none left out, from whichever the first is.
///
/// # Errors
/// The place where it is otherwise.
pub fn are_contiguous(numbers: &[u64]) -> Result<()> {
    let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    ensure!(gap.is_none(), "{gap:?} of {} numbers, {:?} to {:?}", numbers.len(), numbers.first(), numbers.last());
    Ok(())
}
