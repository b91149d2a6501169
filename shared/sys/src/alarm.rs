//! An end for a process that may wait in the kernel for ever: SIGALRM, which ends every wait that SIGKILL ends (setitimer(2), signal(7)).

/// While this is there, the process ends after so many seconds. One at a time: a process has one such timer.
#[derive(Debug)]
#[must_use]
pub struct Alarm(());

impl Alarm {
    /// `seconds`: from now, at least 1.
    pub fn after(seconds: u32) -> Self {
        nix::unistd::alarm::set(seconds.max(1));
        Alarm(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        nix::unistd::alarm::cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_goes_with_its_holder() {
        drop(Alarm::after(0));
        assert_eq!(nix::unistd::alarm::cancel(), None);
        let alarm = Alarm::after(3600);
        assert!(nix::unistd::alarm::cancel().is_some());
        drop(alarm);
    }
}
