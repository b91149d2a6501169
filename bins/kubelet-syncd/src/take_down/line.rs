//! Who gets the next slot, pure: pods whose containers have ended before pods that are to be signalled, each in order of arrival.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Where so long no slot has come back while somebody waits, one more is open: those that are held may be with calls that hang.
pub const STALLS: Duration = Duration::from_secs(1);

/// Where somebody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It has been signalled: what is left to do brings its end.
    Front,
    Back,
}

/// The slots and who waits for them. While one is open and free, nobody waits.
///
/// After quiet few are open, so that the first of a crowd is down early. Each that comes back while somebody waits opens one more, so
/// that the last is down early as well. When all have come back and nobody waits it is quiet again.
#[derive(Debug)]
pub struct Line<T> {
    first: usize,
    most: usize,
    open: usize,
    held: usize,
    front: VecDeque<T>,
    back: VecDeque<T>,
    /// When a slot came back or was opened last, or the first of those who wait came.
    moved: Instant,
}

impl<T> Line<T> {
    /// `first`: slots after quiet, of `most`.
    pub fn new(first: usize, most: usize) -> Self {
        let (front, back) = (VecDeque::new(), VecDeque::new());
        Line { first, most: most.max(first), open: first, held: 0, front, back, moved: Instant::now() }
    }

    /// Slots that are open and nobody's.
    pub fn free(&self) -> usize {
        self.open.saturating_sub(self.held)
    }

    /// Takes a slot that is free.
    pub fn take(&mut self) -> bool {
        let is_free = self.free() > 0;
        self.held += usize::from(is_free);
        is_free
    }

    pub fn wait(&mut self, place: Place, who: T) {
        if self.nobody_waits() {
            self.moved = Instant::now();
        }
        match place {
            Place::Front => self.front.push_back(who),
            Place::Back => self.back.push_back(who),
        }
    }

    /// A slot has come back: one more is open while somebody waits. Those who get one now, by [`Self::next`].
    pub fn come_back(&mut self) {
        self.held = self.held.saturating_sub(1);
        self.open_one();
        self.moved = Instant::now();
        if self.is_quiet() {
            self.open = self.first;
        }
    }

    /// One more is open where none has come back for [`STALLS`]. Those who get one now, by [`Self::next`].
    pub fn open_if_stalled(&mut self) {
        if self.moved.elapsed() >= STALLS {
            self.open_one();
            self.moved = Instant::now();
        }
    }

    /// Where somebody waits and not all are open.
    fn open_one(&mut self) {
        if !self.nobody_waits() {
            self.open = self.most.min(self.open + 1);
        }
    }

    /// Whose a free slot is now.
    pub fn next(&mut self) -> Option<T> {
        if self.free() == 0 {
            return None;
        }
        let next = self.front.pop_front().or_else(|| self.back.pop_front());
        self.held += usize::from(next.is_some());
        next
    }

    /// Whoever [`Self::next`] gave a slot is gone.
    pub fn undo(&mut self) {
        self.held = self.held.saturating_sub(1);
        if self.is_quiet() {
            self.open = self.first;
        }
    }

    /// Nobody holds a slot, and nobody waits for one.
    pub fn is_quiet(&self) -> bool {
        self.held == 0 && self.nobody_waits()
    }

    fn nobody_waits(&self) -> bool {
        self.front.is_empty() && self.back.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_was_signalled_comes_first_and_else_who_came_first() {
        let mut line = Line::new(1, 1);
        assert!(line.take() && !line.take());
        for (place, who) in [(Place::Back, "a"), (Place::Front, "b"), (Place::Back, "c"), (Place::Front, "d")] {
            line.wait(place, who);
        }
        assert_eq!(line.next(), None);
        let after_one = |line: &mut Line<_>| {
            line.come_back();
            line.next()
        };
        let order: Vec<_> = std::iter::from_fn(|| after_one(&mut line)).collect();
        assert_eq!((order, line.free()), (vec!["b", "d", "a", "c"], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn slots_open_while_those_that_are_held_stay_away() {
        let mut line = Line::new(1, 2);
        assert!(line.take());
        tokio::time::advance(STALLS).await;
        line.wait(Place::Back, "a");
        line.wait(Place::Back, "b");
        line.open_if_stalled();
        assert_eq!(line.next(), None, "nobody has waited");
        tokio::time::advance(STALLS).await;
        line.open_if_stalled();
        line.open_if_stalled();
        assert_eq!((line.next(), line.next()), (Some("a"), None));
        tokio::time::advance(STALLS).await;
        line.open_if_stalled();
        assert_eq!((line.next(), line.open), (None, 2), "all are open");
    }

    #[test]
    fn slots_open_one_by_one_while_somebody_waits() {
        let mut line = Line::new(2, 4);
        let taken = |line: &mut Line<_>| std::iter::from_fn(|| line.take().then_some(())).count();
        assert_eq!(taken(&mut line), 2);
        line.open_one();
        assert_eq!(line.free(), 0, "for nobody");
        (0..9).for_each(|who| line.wait(Place::Back, who));
        let mut came = Vec::new();
        for _ in 0..4 {
            line.come_back();
            came.push(std::iter::from_fn(|| line.next()).count());
        }
        assert_eq!((came, line.held), (vec![2, 2, 1, 1], 4));
        line.open_one();
        assert_eq!(line.free(), 0, "all are open");
        // The last three go, and nobody comes.
        (0..7).for_each(|_| {
            line.come_back();
            line.next();
        });
        assert_eq!((line.held, taken(&mut line)), (0, 2));
    }

    proptest! {
        /// Slots are neither lost nor made, and nobody waits while one is free.
        #[test]
        fn slots_are_kept(first in 1..4_usize, more in 0..3_usize, steps in proptest::collection::vec((0..4_u8, any::<bool>()), 0..200)) {
            let (mut line, mut held, mut waiting) = (Line::new(first, first + more), 0, 0);
            for (step, is_gone) in steps {
                match step {
                    0 | 1 => if line.take() { held += 1 } else {
                        line.wait(if step == 0 { Place::Front } else { Place::Back }, ());
                        waiting += 1;
                    },
                    2 if held > 0 => {
                        line.come_back();
                        held -= 1;
                    }
                    3 => line.open_one(),
                    _ => {}
                }
                let mut is_gone = is_gone;
                while line.next().is_some() {
                    waiting -= 1;
                    held += 1;
                    if std::mem::take(&mut is_gone) {
                        line.undo();
                        held -= 1;
                    }
                }
                prop_assert_eq!(line.held, held);
                prop_assert!((first..=first + more).contains(&line.open) && held <= line.open);
                prop_assert!(waiting == 0 || line.free() == 0);
                prop_assert!(held > 0 || line.open == first);
                prop_assert_eq!(line.is_quiet(), held + waiting == 0);
            }
        }
    }
}
