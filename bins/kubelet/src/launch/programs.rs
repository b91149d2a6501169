//! Where the daemons' programs are: beside `kubelet` itself, as a build leaves them, or where a package puts what is no command
//! (`/usr/bin/kubelet` and `/usr/libexec/bulkhead`, the Filesystem Hierarchy Standard's place for it).

use std::path::{Path, PathBuf};

use bulkhead_types::Process;

/// From the folder of `kubelet`.
const PACKAGED: &str = "../libexec/bulkhead";

/// The folder that has all four, looked for from the folder that `kubelet` is in.
///
/// # Errors
/// Neither has: a program that is missing from the first, or from the one that has some of them.
pub fn folder(of_kubelet: &Path) -> Result<PathBuf, PathBuf> {
    let packaged = of_kubelet.join(PACKAGED);
    let missing = |folder: &Path| {
        Process::ALL.into_iter().map(|process| folder.join(process.name())).find(|program| !program.is_file())
    };
    let Some(first) = missing(of_kubelet) else { return Ok(of_kubelet.to_owned()) };
    match missing(&packaged) {
        None => Ok(packaged.canonicalize().unwrap_or(packaged)),
        // Half an installation is told by what it lacks.
        Some(lacks) if packaged.is_dir() => Err(lacks),
        Some(_) => Err(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_itself_first_then_where_a_package_has_them() {
        let root = tempfile::tempdir().unwrap();
        let (bin, libexec) = (root.path().join("bin"), root.path().join("libexec/bulkhead"));
        std::fs::create_dir_all(&bin).unwrap();
        let first = bin.join(Process::ALL[0].name());
        assert_eq!(folder(&bin).unwrap_err(), first);

        std::fs::create_dir_all(&libexec).unwrap();
        let fill =
            |folder: &Path| Process::ALL.iter().for_each(|one| std::fs::write(folder.join(one.name()), "").unwrap());
        std::fs::write(libexec.join(Process::ALL[0].name()), "").unwrap();
        assert_eq!(folder(&bin).unwrap_err(), bin.join(PACKAGED).join(Process::ALL[1].name()));
        fill(&libexec);
        assert_eq!(folder(&bin).unwrap(), libexec.canonicalize().unwrap());
        fill(&bin);
        assert_eq!(folder(&bin).unwrap(), bin);
    }
}
