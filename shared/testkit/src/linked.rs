//! A program of the tests in an image, with the libraries that it is linked with.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::image::Tar;
use crate::machine;

/// Puts the program into the layer by the name `at`, and beside it what its loader opens.
pub(crate) fn add(layer: &mut Tar<Vec<u8>>, program: &Path, at: &str) -> Result<()> {
    let content = std::fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    layer.file(at, 0o755, &content)?;
    for library in libraries(program)? {
        let content = std::fs::read(&library).with_context(|| format!("reading {}", library.display()))?;
        layer.file(library.to_string_lossy().trim_start_matches('/'), 0o755, &content)?;
    }
    Ok(())
}

/// The program without what only a debugger reads, which is most of it; as it is where there is no `strip`.
pub(crate) fn without_symbols(program: &Path, stripped: &Path) -> PathBuf {
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(stripped).arg(program).stdin(Stdio::null()).stderr(Stdio::null());
    let done = strip.status().is_ok_and(|status| status.success()) && stripped.is_file();
    if done { stripped.to_owned() } else { program.to_owned() }
}

/// The files that the loader would open, itself included.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let list = machine::run("ldd", &[&program.to_string_lossy()])?;
    Ok(list.split_ascii_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_its_loader() {
        let own = std::env::current_exe().unwrap();
        let all = libraries(&own).unwrap();
        assert!(all.iter().any(|one| one.to_string_lossy().contains("ld-linux")), "{all:?}");
        assert!(all.iter().all(|one| one.is_file()), "{all:?}");
    }
}
