//! What a service answers from: the socket is served from the first moment on, and the start of the process takes longer.

use std::sync::{Arc, OnceLock};

use tonic::Status;

/// There once the start of the process has come to it. Cheap to clone; all clones have the same.
#[derive(Debug)]
pub struct Late<T>(Arc<OnceLock<T>>);

impl<T> Clone for Late<T> {
    fn clone(&self) -> Self {
        Late(self.0.clone())
    }
}

impl<T> Default for Late<T> {
    fn default() -> Self {
        Late(Arc::default())
    }
}

impl<T> Late<T> {
    /// From here on it is there. It is set once, at the start; what comes later is dropped.
    pub fn set(&self, part: T) {
        let _ = self.0.set(part);
    }

    /// # Errors
    /// `Unavailable`: it is not there yet.
    pub fn get(&self) -> Result<&T, Status> {
        self.0.get().ok_or_else(starting)
    }
}

/// For a caller that comes before the start of the process has come far enough.
pub fn starting() -> Status {
    Status::unavailable("kubelet-syncd is starting")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_there_for_all_who_have_it() {
        let late = Late::default();
        let other = late.clone();
        assert_eq!(other.get().unwrap_err().code(), tonic::Code::Unavailable);
        late.set(1);
        late.set(2);
        assert_eq!(other.get().unwrap(), &1);
    }
}
