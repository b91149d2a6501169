//! What `cargo xtask fuzz` feeds with anything. Each target has to keep a promise beside not to panic; inputs that once reached code
//! that no other did are kept in `tests/fixtures/fuzz` and run again in the tests.

pub mod searched;
mod targets;

use std::path::PathBuf;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bulkhead_testkit::build;

pub use targets::TARGETS;

/// A parser of strangers' bytes.
#[derive(Debug)]
pub struct Target {
    pub name: &'static str,
    /// Inputs that are well formed.
    pub seeds: &'static [&'static [u8]],
    /// Words to put into other inputs: libFuzzer's dictionary.
    pub words: &'static [&'static [u8]],
    /// Panics on what is wrong.
    pub run: fn(&[u8]),
}

impl Target {
    /// The target of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Where its corpus is kept: one input a line, base64.
    pub fn corpus_file(&self) -> PathBuf {
        build::workspace_root().join("tests/fixtures/fuzz").join(self.name).with_extension("base64")
    }

    /// The seeds, and the inputs that are kept.
    ///
    /// # Errors
    /// The file of the corpus cannot be read, or holds something else. No file is no error.
    pub fn corpus(&self) -> Result<Vec<Vec<u8>>> {
        let file = self.corpus_file();
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
        };
        let mut inputs: Vec<Vec<u8>> = self.seeds.iter().map(|seed| seed.to_vec()).collect();
        for (number, line) in text.lines().enumerate() {
            let input = STANDARD.decode(line).with_context(|| format!("{}:{}", file.display(), number + 1))?;
            inputs.push(input);
        }
        Ok(inputs)
    }

    /// Keeps these inputs in place of those that are kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, inputs: &[Vec<u8>]) -> Result<()> {
        let mut lines: Vec<String> = inputs.iter().map(|input| STANDARD.encode(input) + "\n").collect();
        lines.sort_by_key(|line| (line.len(), line.clone()));
        let file = self.corpus_file();
        std::fs::create_dir_all(file.parent().unwrap_or(&file)).context("creating the folder of the corpora")?;
        std::fs::write(&file, lines.concat()).with_context(|| format!("writing {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole, and cut: most of what goes wrong in a parser goes wrong where its input ends.
    #[test]
    fn every_target_stands_its_corpus() {
        for target in TARGETS {
            let corpus = target.corpus().unwrap();
            assert!(corpus.len() > target.seeds.len(), "{}: nothing is kept of a search", target.name);
            for input in corpus {
                (target.run)(&input);
                (target.run)(&input[..input.len() / 2]);
                (target.run)(&input[..input.len().saturating_sub(1)]);
            }
        }
    }
}
