//! Makes inputs: well-formed ones that are cut, joined, overwritten and salted with words, over and over. Whatever a target
//! took longest for, or grew from, is kept and changed further.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use bulkhead_tests::Dice;

use crate::targets::Target;

/// No input is longer, bytes.
const LONGEST: usize = 4096;
/// An input that takes longer has found something, too.
const SLOW: Duration = Duration::from_millis(500);
/// Inputs kept beside the seeds.
const KEPT: usize = 256;

/// What was found.
#[derive(Debug)]
pub struct Found {
    pub input: Vec<u8>,
    pub problem: String,
}

/// One input. `None`: nothing wrong.
pub fn try_one(target: &Target, input: &[u8]) -> Option<Found> {
    let begin = Instant::now();
    let ended = std::panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let problem = match ended {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("panicked: {}", text.unwrap_or_default())
        }
        Ok(()) if begin.elapsed() > SLOW => format!("took {:?}", begin.elapsed()),
        Ok(()) => return None,
    };
    Some(Found { input: input.to_owned(), problem })
}

/// Tries inputs until `enough` says so, or one finds something. Answers how many there were.
pub fn search(target: &Target, dice: &mut Dice, mut enough: impl FnMut(u64) -> bool) -> (u64, Option<Found>) {
    let mut corpus: Vec<Vec<u8>> = target.seeds.iter().map(|seed| seed.to_vec()).collect();
    let mut tried = 0;
    while !enough(tried) {
        let mut input = pick(&corpus, dice).to_vec();
        for _ in 0..=dice.below(6) {
            change(&mut input, &corpus, target, dice);
        }
        input.truncate(LONGEST);
        tried += 1;
        if let Some(found) = try_one(target, &input) {
            return (tried, Some(smallest(target, found)));
        }
        if dice.below(64) == 0 {
            if corpus.len() >= target.seeds.len() + KEPT {
                let victim = target.seeds.len() + below(dice, KEPT);
                corpus.swap_remove(victim);
            }
            corpus.push(input);
        }
    }
    (tried, None)
}

fn below(dice: &mut Dice, bound: usize) -> usize {
    usize::try_from(dice.below(bound as u64)).unwrap_or(0)
}

fn pick<'a>(corpus: &'a [Vec<u8>], dice: &mut Dice) -> &'a [u8] {
    corpus.get(below(dice, corpus.len())).map_or(&[], Vec::as_slice)
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], target: &Target, dice: &mut Dice) {
    let at = below(dice, input.len() + 1);
    let length = below(dice, 17).min(input.len() - at);
    match dice.below(8) {
        0 => drop(input.drain(at..at + length)),
        1 => input.splice(at..at, input[at..at + length].to_vec()).for_each(drop),
        2 => {
            let other = pick(corpus, dice);
            let from = below(dice, other.len() + 1);
            let to = (from + below(dice, 65)).min(other.len());
            input.splice(at..at + length, other[from..to].iter().copied()).for_each(drop);
        }
        3 | 4 => {
            let word = target.words.get(below(dice, target.words.len())).copied().unwrap_or_default();
            let end = if dice.below(2) == 0 { at } else { at + length };
            input.splice(at..end, word.iter().copied()).for_each(drop);
        }
        5 => input.insert(at, u8::try_from(dice.below(256)).unwrap_or_default()),
        6 => input.extend(std::iter::repeat_n(input.get(at).copied().unwrap_or(b'x'), below(dice, 512))),
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
    }
}

/// The same problem with fewer bytes, as far as leaving out pieces gets.
fn smallest(target: &Target, mut found: Found) -> Found {
    let mut piece = found.input.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < found.input.len() {
            let mut less = found.input.clone();
            less.drain(at..(at + piece).min(less.len()));
            match try_one(target, &less) {
                Some(smaller) => found = smaller,
                None => at += piece,
            }
        }
        piece /= 2;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::TARGETS;

    #[test]
    fn what_is_wrong_is_found_and_made_small() {
        const SILLY: Target = Target {
            name: "silly",
            seeds: &[b"harmless"],
            words: &[b"boom"],
            run: |input| assert!(!input.windows(4).any(|window| window == b"boom"), "it went off"),
        };
        let (_, found) = search(&SILLY, &mut Dice::from_environment(), |tried| tried > 100_000);
        let found = found.expect("the word is put into one of the first inputs");
        assert_eq!((found.input.as_slice(), found.problem.as_str()), (b"boom".as_slice(), "panicked: it went off"));
    }

    #[test]
    fn every_target_stands_some_thousand_inputs() {
        let mut dice = Dice::from_environment();
        for target in TARGETS {
            for seed in target.seeds {
                assert!(try_one(target, seed).is_none(), "{}: a seed", target.name);
            }
            let (_, found) = search(target, &mut dice, |tried| tried >= 3000);
            assert!(found.is_none(), "{} (BULKHEAD_SEED={}): {found:?}", target.name, dice.seed());
        }
    }
}
