//! Who gets the next slot, pure: pods whose containers have ended before pods that are to be signalled, each in order of arrival.

use std::collections::VecDeque;

/// Where somebody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It has been signalled: what is left to do brings its end.
    Front,
    Back,
}

/// The slots and who waits for them. While one is free, nobody waits.
#[derive(Debug)]
pub struct Line<T> {
    free: usize,
    front: VecDeque<T>,
    back: VecDeque<T>,
}

impl<T> Line<T> {
    pub fn new(slots: usize) -> Self {
        Line { free: slots, front: VecDeque::new(), back: VecDeque::new() }
    }

    pub fn free(&self) -> usize {
        self.free
    }

    /// Takes a slot that is free.
    pub fn take(&mut self) -> bool {
        let is_free = self.free > 0;
        self.free = self.free.saturating_sub(1);
        is_free
    }

    pub fn wait(&mut self, place: Place, who: T) {
        match place {
            Place::Front => self.front.push_back(who),
            Place::Back => self.back.push_back(who),
        }
    }

    /// A slot has come back: whose it is now. Nobody's: it is free.
    pub fn next(&mut self) -> Option<T> {
        let next = self.front.pop_front().or_else(|| self.back.pop_front());
        self.free += usize::from(next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_was_signalled_comes_first_and_else_who_came_first() {
        let mut line = Line::new(1);
        assert!(line.take() && !line.take());
        for (place, who) in [(Place::Back, "a"), (Place::Front, "b"), (Place::Back, "c"), (Place::Front, "d")] {
            line.wait(place, who);
        }
        let order: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        assert_eq!((order, line.free()), (vec!["b", "d", "a", "c"], 1));
    }

    proptest! {
        /// Slots are neither lost nor made, and nobody waits while one is free.
        #[test]
        fn slots_are_kept(slots in 1..5_usize, steps in proptest::collection::vec(0..3_u8, 0..200)) {
            let (mut line, mut held, mut waiting) = (Line::new(slots), 0, 0);
            for step in steps {
                match step {
                    0 | 1 => if line.take() { held += 1 } else {
                        line.wait(if step == 0 { Place::Front } else { Place::Back }, ());
                        waiting += 1;
                    },
                    _ if held > 0 => match line.next() {
                        Some(()) => waiting -= 1,
                        None => held -= 1,
                    },
                    _ => {}
                }
                prop_assert_eq!(line.free() + held, slots);
                prop_assert!(waiting == 0 || line.free() == 0);
            }
        }
    }
}
