//! `/debug/pprof/`: profiles of Go's runtime, which is not here. The command line is shown; of everything else the answer
//! says that there is none, so that nobody takes an empty profile for a quiet process.

use http::{HeaderValue, StatusCode};

use crate::server::answer::{self, Answer};

/// Names that upstream's handler knows (Go's net/http/pprof and runtime/pprof).
const PROFILES: [&str; 10] =
    ["allocs", "block", "goroutine", "goroutineleak", "heap", "mutex", "profile", "symbol", "threadcreate", "trace"];

const INDEX: &str = "<html>\n<head>\n<title>/debug/pprof/</title>\n</head>\n<body>\n<p>This node agent is not written in Go: of \
                     its profiles there is the command line alone.</p>\n<a href='cmdline'>cmdline</a>\n</body>\n</html>\n";

/// `profile`: what follows `/debug/pprof/`. `command_line`: of the node agent as it was started, its words.
pub fn answer(profile: &str, command_line: &[Vec<u8>]) -> Answer {
    match profile {
        "" => answer::typed(StatusCode::OK, "text/html; charset=utf-8", INDEX),
        "cmdline" => answer::text(StatusCode::OK, command_line.join(&0)),
        known if PROFILES.contains(&known) => {
            let words = "this node agent is not written in Go and has no such profile\n";
            answer::text(StatusCode::NOT_IMPLEMENTED, words)
        }
        _ => {
            let mut answer = answer::text(StatusCode::NOT_FOUND, "Unknown profile\n");
            answer.headers_mut().insert("x-go-pprof", HeaderValue::from_static("1"));
            answer
        }
    }
}

/// The launcher's words when it is our parent, else our own.
pub fn command_line() -> Vec<Vec<u8>> {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let of = |pid: &str| std::fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|words| !words.is_empty());
    let is_ours =
        std::fs::read_to_string(format!("/proc/{parent}/comm")).is_ok_and(|name| name.trim_end() == "kubelet");
    let words = of(&parent.to_string()).filter(|_| is_ours).or_else(|| of("self")).unwrap_or_default();
    words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_up() {
        let words = [b"kubelet".to_vec(), b"--v=4".to_vec()];
        for (profile, status) in
            [("", 200), ("cmdline", 200), ("heap", 501), ("profile", 501), ("trace", 501), ("x", 404), ("heap/x", 404)]
        {
            assert_eq!(answer(profile, &words).status().as_u16(), status, "{profile}");
        }
        assert!(!command_line().is_empty());
    }
}
