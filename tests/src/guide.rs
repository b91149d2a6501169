//! A document's shell commands, run as they stand: fenced blocks marked `sh`, each in a shell of its own, in root's folder.
//! Other kinds of blocks are named by their own mark (`console`, `ini`), so that none is left out by accident.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::systemd::Machine;

/// Marks of blocks that are no commands, or are said not to be run.
const NOT_RUN: &[&str] = &["console", "ini", "yaml", "json"];
/// How the shell tells of a command that failed: exit code and the command.
const MARK: &str = "\u{1}failed ";
/// As a person's shell: what fails does not end it, but is told.
const WRAP: &str =
    r#"cd /root; eol=$'\n'; trap 'printf "\001failed %s: %s\n" "$?" "${BASH_COMMAND%%"$eol"*}" >&2' ERR; eval "$1""#;

/// One block of commands.
#[derive(Debug)]
struct Block {
    section: String,
    /// Where it begins in the document, from 1.
    line: usize,
    text: String,
}

/// The blocks of a document that have not been run yet.
#[derive(Debug)]
pub struct Guide {
    name: String,
    blocks: Vec<Block>,
}

/// What a block's commands said.
#[derive(Debug)]
pub struct Said {
    pub stdout: String,
    pub stderr: String,
    /// Commands that ended with another code than 0: `1: grep x y`.
    pub failed: Vec<String>,
}

impl Guide {
    /// # Errors
    /// There is no such file, or it has a block without a mark, or with an unknown one.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let blocks = blocks(&text).with_context(|| name.clone())?;
        Ok(Self { name, blocks })
    }

    /// Runs the next block of a section. `may_fail`: beginnings of commands whose exit code says something else than that
    /// they went wrong (`grep` that finds nothing).
    ///
    /// # Errors
    /// There is none left, another command failed, or the shell did not know one.
    pub fn run(&mut self, machine: &Machine, section: &str, may_fail: &[&str]) -> Result<Said> {
        let found = self.blocks.iter().position(|block| block.section == section);
        let found = found.with_context(|| format!("{}: no block is left in the section {section:?}", self.name))?;
        let block = self.blocks.remove(found);
        eprintln!("{}:{}\n{}", self.name, block.line, block.text);
        let output = machine.run(&["bash", "--norc", "-c", WRAP, "bash", &block.text])?;
        let said = said(&String::from_utf8_lossy(&output.stdout), &String::from_utf8_lossy(&output.stderr));
        let expected = |failed: &&String| {
            let command = failed.split_once(": ").map_or("", |(_, command)| command);
            !may_fail.iter().any(|allowed| command.starts_with(allowed))
        };
        let unexpected: Vec<_> = said.failed.iter().filter(expected).collect();
        let unknown = said.stderr.contains("command not found") || said.stderr.contains("syntax error");
        ensure!(
            unexpected.is_empty() && !unknown,
            "{}:{}: {unexpected:?}\n{}{}",
            self.name,
            block.line,
            said.stdout,
            said.stderr
        );
        Ok(said)
    }

    /// # Errors
    /// Blocks that were not run.
    pub fn finish(self) -> Result<()> {
        let left: Vec<_> = self.blocks.iter().map(|block| format!("{}:{}", self.name, block.line)).collect();
        ensure!(left.is_empty(), "these blocks were not run: {left:?}");
        Ok(())
    }
}

impl Said {
    /// # Errors
    /// One of the words is not in the standard output.
    pub fn has(&self, words: &[&str]) -> Result<()> {
        let missing: Vec<_> = words.iter().filter(|word| !self.stdout.contains(**word)).collect();
        ensure!(missing.is_empty(), "{missing:?} is not in\n{}{}", self.stdout, self.stderr);
        Ok(())
    }
}

fn said(stdout: &str, stderr: &str) -> Said {
    let failed = stderr.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned).collect();
    let stderr = stderr.lines().filter(|line| !line.starts_with(MARK)).map(|line| format!("{line}\n")).collect();
    Said { stdout: stdout.to_owned(), stderr, failed }
}

fn blocks(document: &str) -> Result<Vec<Block>> {
    let (mut found, mut section) = (Vec::new(), String::new());
    let mut open: Option<(&str, Block)> = None;
    for (number, line) in document.lines().enumerate().map(|(number, line)| (number + 1, line)) {
        match (line.strip_prefix("```"), &mut open) {
            (Some(""), Some(_)) => {
                let block = open.take().filter(|(mark, _)| *mark == "sh");
                found.extend(block.map(|(_, block)| block));
            }
            (Some(mark), None) => {
                if mark != "sh" && !NOT_RUN.contains(&mark) {
                    bail!("line {number}: a block is marked {mark:?}: sh, or one of {NOT_RUN:?}");
                }
                open = Some((mark, Block { section: section.clone(), line: number + 1, text: String::new() }));
            }
            (_, Some((_, block))) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {
                if let Some(heading) = line.strip_prefix('#') {
                    section = heading.trim_start_matches('#').trim().to_owned();
                }
            }
        }
    }
    ensure!(open.is_none(), "a block does not end");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_belong_to_their_section_and_say_what_they_are() {
        let text = "# A\n```sh\n# no heading\ntrue\n```\n## B c\n```console\nfalse\n```\n```sh\nfalse\n```\n";
        let found = blocks(text).unwrap();
        let shown: Vec<_> =
            found.iter().map(|block| (block.section.as_str(), block.line, block.text.as_str())).collect();
        assert_eq!(shown, [("A", 3, "# no heading\ntrue\n"), ("B c", 11, "false\n")]);
        for bad in ["```\nx\n```\n", "```bash\nx\n```\n", "```sh\nx\n"] {
            assert!(blocks(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn failed_commands_are_shown_apart() {
        let said = said("out\n", "a\n\u{1}failed 1: grep x\nb\n");
        assert_eq!((said.failed.as_slice(), said.stderr.as_str()), (["1: grep x".to_owned()].as_slice(), "a\nb\n"));
    }
}
