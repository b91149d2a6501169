//! The daemons' command line: where the rendered configuration is, and nothing else.

use std::path::PathBuf;

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
pub enum Arguments {
    Run {
        run_dir: PathBuf,
    },
    /// Print this and stop.
    Print(String),
}

/// Reads the arguments after the program's name. `about`: one line for `--help`.
///
/// # Errors
/// An argument that is not known, or a run directory that is not absolute; the text is for a person.
pub fn parse(name: &str, about: &str, args: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut run_dir = PathBuf::from("/run/kubelet");
    let mut args = args;
    while let Some(arg) = args.next() {
        let (flag, inline) = match arg.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (arg, None),
        };
        match flag.as_str() {
            "--run-dir" => {
                let value = inline.or_else(|| args.next()).ok_or("--run-dir wants a directory")?;
                run_dir = PathBuf::from(value);
                if !run_dir.is_absolute() {
                    return Err(format!("--run-dir {}: an absolute path is wanted", run_dir.display()));
                }
            }
            "--help" | "-h" => {
                return Ok(Arguments::Print(format!(
                    "{name}: {about}\n\nUsage: {name} [--run-dir DIR]\n\n  \
                     --run-dir DIR  sockets and the configuration that `kubelet` rendered (default /run/kubelet)\n  \
                     --version      print the version\n  --help         print this\n\n\
                     It is started by `kubelet` or by its systemd unit, which hold its sockets."
                )));
            }
            "--version" => return Ok(Arguments::Print(format!("{name} {}", env!("CARGO_PKG_VERSION")))),
            other => return Err(format!("unknown argument {other}; see {name} --help")),
        }
    }
    Ok(Arguments::Run { run_dir })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(list: &[&str]) -> Result<Arguments, String> {
        parse("kubelet-syncd", "decides", list.iter().map(|s| (*s).to_owned()))
    }

    #[test]
    fn run_dir_and_refusals() {
        assert_eq!(args(&[]), Ok(Arguments::Run { run_dir: "/run/kubelet".into() }));
        assert_eq!(args(&["--run-dir", "/x"]), Ok(Arguments::Run { run_dir: "/x".into() }));
        assert_eq!(args(&["--run-dir=/x"]), Ok(Arguments::Run { run_dir: "/x".into() }));
        assert!(args(&["--run-dir"]).is_err());
        assert!(args(&["--run-dir", "x"]).is_err());
        assert!(args(&["--config", "x"]).is_err());
        assert!(matches!(args(&["--help"]), Ok(Arguments::Print(_))));
    }
}
