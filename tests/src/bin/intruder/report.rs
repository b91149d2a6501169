//! What came of each act, a line each, in words that a table can be compared with.

use std::io;

use bulkhead_sys::attempt::{self, Call, Ended};

#[derive(Debug)]
pub struct Report {
    process: &'static str,
    acts: usize,
}

impl Report {
    pub fn new(process: &'static str) -> Self {
        Report { process, acts: 0 }
    }

    /// Runs the act in a child and tells how that ended: `allowed`, an error's name, or a signal's.
    pub fn attempt(&mut self, act: &str, work: impl FnOnce() -> io::Result<()>) {
        let outcome = match attempt::in_child(work) {
            Ok(Ended::Allowed) => "allowed".to_owned(),
            Ok(Ended::Refused(number)) => {
                let name = nix::errno::Errno::from_raw(number);
                format!("{name:?}")
            }
            Ok(Ended::Killed(signal)) => format!("killed-by-{signal}"),
            Ok(Ended::Dumped(signal)) => format!("dumped-core-on-{signal}"),
            Err(error) => format!("not-tried:{:?}", error.kind()),
        };
        self.tell(act, &outcome);
    }

    /// The same for a bare system call.
    pub fn call(&mut self, act: &str, call: Call) {
        self.attempt(act, || attempt::make(call));
    }

    /// The same for what has been tried already.
    pub fn tell(&mut self, act: &str, outcome: &str) {
        self.acts += 1;
        self.note(act, outcome);
    }

    /// A line that is no act.
    pub fn note(&self, name: &str, text: &str) {
        eprintln!("INTRUDER {} {name} {text}", self.process);
    }

    pub fn end(&self) {
        self.note("end", &self.acts.to_string());
    }
}
