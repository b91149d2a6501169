//! A queue of bounded length and size that never refuses: the oldest go.

use std::collections::VecDeque;

/// Items in their order, no more than so many and no more bytes of them than so many.
#[derive(Debug)]
pub struct OldestFirst<T> {
    items: VecDeque<T>,
    bytes: usize,
    items_max: usize,
    bytes_max: usize,
    size: fn(&T) -> usize,
}

impl<T> OldestFirst<T> {
    /// `size`: of an item, bytes; must not change while the item is here.
    pub fn new(items_max: usize, bytes_max: usize, size: fn(&T) -> usize) -> Self {
        OldestFirst { items: VecDeque::new(), bytes: 0, items_max, bytes_max, size }
    }

    /// Adds an item. Answers how many had to go; one that is larger than all the room goes itself, after the others.
    pub fn push(&mut self, item: T) -> usize {
        self.bytes = self.bytes.saturating_add((self.size)(&item));
        self.items.push_back(item);
        let mut gone = 0;
        while (self.items.len() > self.items_max || self.bytes > self.bytes_max) && self.pop().is_some() {
            gone += 1;
        }
        gone
    }

    /// The oldest.
    pub fn pop(&mut self) -> Option<T> {
        let oldest = self.items.pop_front()?;
        self.bytes = self.bytes.saturating_sub((self.size)(&oldest));
        Some(oldest)
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever comes: both bounds hold, the order stays, none is lost without being counted, and no more go than must.
        #[test]
        fn bounded_and_honest(sizes in prop::collection::vec(0..150_usize, 0..300), pops in prop::collection::vec(any::<bool>(), 300)) {
            let mut queue = OldestFirst::new(20, 1000, |item: &(usize, usize)| item.1);
            let (mut next, mut gone) = (0, 0);
            for (number, size) in sizes.iter().enumerate() {
                let went = queue.push((number, *size));
                gone += went;
                prop_assert!(queue.len() <= 20 && queue.items.iter().map(|item| item.1).sum::<usize>() <= 1000);
                if went > 0 {
                    let before: usize = sizes[number - queue.len()..=number].iter().sum();
                    prop_assert!(queue.len() == 20 || before > 1000, "one more would have had no room");
                }
                if pops[number] && let Some(item) = queue.pop() {
                    prop_assert!(item.0 == next + gone);
                    next += 1;
                }
                prop_assert_eq!(next + gone + queue.len(), number + 1);
            }
        }
    }

    #[test]
    fn what_is_larger_than_all_the_room_goes() {
        let mut queue = OldestFirst::new(20, 1000, |item: &usize| *item);
        assert_eq!((queue.push(600), queue.push(1001), queue.len()), (0, 2, 0));
        assert_eq!((queue.push(1000), queue.is_empty()), (0, false));
    }
}
