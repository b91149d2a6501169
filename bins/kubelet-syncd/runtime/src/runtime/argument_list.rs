//! What a container's program is started with, and how much that may be. A pod of some KiB could otherwise name a long value so
//! often that this process has no memory left for it, and its successor none either.

use std::borrow::Cow;

use indexmap::IndexMap;

/// Bytes of command, arguments and environment as execve counts them: each with its NUL and a pointer to it. No kernel passes more,
/// whatever the stack's limit is (Linux `fs/exec.c` `bprm_stack_limits`: three quarters of `_STK_LIM`; with the usual stack of 8 MiB
/// it is 2 MiB). A single text of more than 128 KiB is the runtime's to refuse: not each of them starts containers by execve.
pub const ARGUMENT_LIST_MAX: usize = 6 << 20;

/// Bytes, counted alike, of all that is put into one environment, with what later variables replace.
const WRITTEN_MAX: usize = 8 * ARGUMENT_LIST_MAX;

/// NUL and pointer.
const ENTRY: usize = 1 + size_of::<usize>();

/// What is larger, in bytes or in number of texts, waits for its turn at being made.
const LARGE: usize = 512 << 10;
const LARGE_TEXTS: usize = 4096;

/// How many of the large ones there are at a time, of all pods. Each may take some 200 MiB, if it is of very many short variables.
pub(super) const LARGE_AT_A_TIME: usize = 2;

/// Characters of a variable's name that an error shows.
const NAME_SHOWN: usize = 64;

/// Values by name, in the order in which they go to the runtime. A secret's value may be any bytes.
pub type Environment = IndexMap<String, Vec<u8>>;

/// Why a container's environment and command are not made, as the message of `CreateContainerConfigError`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsTooLong {
    #[error(
        "argument list too long: with {0} the command, its arguments and the environment take more than {ARGUMENT_LIST_MAX} bytes, \
         the most that the kernel passes to a program"
    )]
    Passed(String),
    #[error(
        "argument list too long: with {0} more than {WRITTEN_MAX} bytes are put into the environment, replaced ones among them"
    )]
    Written(String),
}

impl ArgumentsTooLong {
    pub(super) fn with_variable(name: &str) -> Self {
        ArgumentsTooLong::Passed(variable(name))
    }
}

fn variable(name: &str) -> String {
    let shown: String = name.chars().take(NAME_SHOWN).collect();
    format!("variable {shown:?}")
}

fn variable_size(name: &str, value: &[u8]) -> usize {
    name.len() + 1 + value.len() + ENTRY
}

/// An environment that grows.
#[derive(Debug, Default)]
pub(super) struct Variables {
    all: Environment,
    size: usize,
    written: usize,
}

impl Variables {
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.all.get(name).map(Vec::as_slice)
    }

    /// Bytes that the variable's value may have.
    pub(super) fn room(&self, name: &str) -> Result<usize, ArgumentsTooLong> {
        let others = self.size - self.get(name).map_or(0, |old| variable_size(name, old));
        let room = ARGUMENT_LIST_MAX.checked_sub(others + variable_size(name, b""));
        room.ok_or_else(|| ArgumentsTooLong::with_variable(name))
    }

    /// A name that is there already keeps its place. Nothing is copied that does not fit.
    pub(super) fn set(&mut self, name: String, value: Cow<'_, [u8]>) -> Result<(), ArgumentsTooLong> {
        let left = self.room(&name)?.checked_sub(value.len());
        let left = left.ok_or_else(|| ArgumentsTooLong::with_variable(&name))?;
        self.written += variable_size(&name, &value);
        if self.written > WRITTEN_MAX {
            return Err(ArgumentsTooLong::Written(variable(&name)));
        }
        self.size = ARGUMENT_LIST_MAX - left;
        self.all.insert(name, value.into_owned());
        Ok(())
    }

    /// The same, where no variable has the name yet.
    pub(super) fn add(&mut self, name: String, value: Vec<u8>) -> Result<(), ArgumentsTooLong> {
        if self.all.contains_key(&name) {
            return Ok(());
        }
        self.set(name, value.into())
    }

    pub(super) fn finish(self) -> Environment {
        self.all
    }
}

/// What an environment leaves for the command and its arguments.
#[derive(Debug)]
pub(super) struct Room(usize);

impl Room {
    pub(super) fn beside(environment: &Environment) -> Self {
        let taken = environment.iter().map(|(name, value)| variable_size(name, value)).sum();
        Room(ARGUMENT_LIST_MAX.saturating_sub(taken))
    }

    /// Bytes that one more text may have.
    pub(super) fn text(&self) -> usize {
        self.0.saturating_sub(ENTRY)
    }

    /// Takes the place of one, which `what` is.
    pub(super) fn take(&mut self, text: &[u8], what: impl FnOnce() -> String) -> Result<(), ArgumentsTooLong> {
        self.0 = self.0.checked_sub(text.len() + ENTRY).ok_or_else(|| ArgumentsTooLong::Passed(what()))?;
        Ok(())
    }

    /// Whether so much is taken, in bytes or in texts, that what is made of it is counted in many MiB: the request to the runtime has
    /// all of it once more, and is encoded, and each text takes some hundred bytes beside its own.
    pub(super) fn is_large(&self, texts: usize) -> bool {
        ARGUMENT_LIST_MAX - self.0 > LARGE || texts > LARGE_TEXTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &Variables) -> Vec<(&str, usize)> {
        variables.all.iter().map(|(name, value)| (name.as_str(), value.len())).collect()
    }

    #[test]
    fn replaced_values_make_room() {
        let mut variables = Variables::default();
        let most = ARGUMENT_LIST_MAX - variable_size("A", b"");
        assert_eq!(variables.room("A"), Ok(most));
        variables.set("A".into(), vec![0; most].into()).unwrap();
        assert_eq!(variables.set("B".into(), Cow::Borrowed(b"")), Err(ArgumentsTooLong::with_variable("B")));
        let refused = variables.set("A".into(), vec![0; most + 1].into()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "argument list too long: with variable \"A\" the command, its arguments and the environment take more than 6291456 \
             bytes, the most that the kernel passes to a program"
        );
        variables.set("A".into(), Cow::Borrowed(b"1")).unwrap();
        variables.set("B".into(), Cow::Borrowed(b"2")).unwrap();
        variables.add("A".into(), vec![0; most]).unwrap();
        assert_eq!(of(&variables), [("A", 1), ("B", 1)]);
        let taken = variable_size("A", b"1") + variable_size("B", b"2");
        assert_eq!(variables.size, taken);
        let mut room = Room::beside(&variables.finish());
        assert_eq!(room.0, ARGUMENT_LIST_MAX - taken);
        room.take(&vec![0; room.text()], || unreachable!()).unwrap();
        assert_eq!(room.take(b"", || "args[1]".into()), Err(ArgumentsTooLong::Passed("args[1]".into())));
    }

    #[test]
    fn what_is_replaced_is_not_without_bound() {
        let (mut variables, large) = (Variables::default(), vec![0; 5 << 20]);
        let refused = (0..100).find_map(|_| variables.set("A".into(), Cow::Borrowed(&large)).err());
        assert_eq!(
            refused.unwrap().to_string(),
            "argument list too long: with variable \"A\" more than 50331648 bytes are put into the environment, replaced ones \
             among them"
        );
        assert_eq!(variables.written / large.len(), 10);
    }

    #[test]
    fn what_is_large() {
        let mut room = Room::beside(&Environment::new());
        assert!(!room.is_large(LARGE_TEXTS) && room.is_large(LARGE_TEXTS + 1));
        room.take(&vec![0; LARGE - ENTRY], String::new).unwrap();
        assert!(!room.is_large(1));
        room.take(b"", String::new).unwrap();
        assert!(room.is_large(1));
    }

    #[test]
    fn a_long_name_is_not_all_told() {
        assert!(ArgumentsTooLong::with_variable(&"é".repeat(1 << 20)).to_string().len() < 400);
    }
}
