//! Names of log files: where the runtime writes a container's log.

/// CRI's `log_path`, relative to the pod's log directory.
pub fn container_log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// `<n>` of a log file that is where [`container_log_path`] puts it; `None` for a log anywhere else.
pub fn log_number(path: &str, pod_directory: &str, container: &str) -> Option<u32> {
    let file = path.strip_prefix(pod_directory)?.strip_prefix('/')?.strip_prefix(container)?.strip_prefix('/')?;
    let number = file.strip_suffix(".log")?.parse().ok()?;
    // "+1" and "01" are other files.
    (file == format!("{number}.log")).then_some(number)
}

/// Restart count of a container that the runtime has no record of: one above the highest log file there is, so that
/// no old log is overwritten after a reboot.
pub fn restart_count_from_logs(highest_index: Option<u32>) -> u32 {
    highest_index.map_or(0, |n| n.saturating_add(1))
}

/// As a mount has it: the API takes a termination message path, and a local volume's, without the slash, too.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_the_number_of_its_restart() {
        assert_eq!(container_log_path("main", 2), "main/2.log");
        for (path, number) in [
            ("/l/n_p_u/main/2.log", Some(2)),
            ("/l/n_p_u/main/02.log", None),
            ("/l/n_p_u/main/+2.log", None),
            ("/l/n_p_u/main/2.log.1", None),
            ("/l/n_p_u/main/../2.log", None),
            ("/l/n_p_u/main/x/2.log", None),
            ("/l/n_p_u/other/2.log", None),
            ("/l/n_p_u2/main/2.log", None),
            ("/elsewhere/2.log", None),
            ("", None),
        ] {
            assert_eq!(log_number(path, "/l/n_p_u", "main"), number, "{path}");
        }
        assert_eq!((restart_count_from_logs(None), restart_count_from_logs(Some(4))), (0, 5));
    }
}
