//! Sets of NUMA nodes (upstream `topologymanager/bitmask`).

/// Nodes 0 to 63, a bit each. The order is that of the number: of two masks with as many nodes, the one with lower nodes is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NumaMask(u64);

impl NumaMask {
    /// Numbers above 63 are left out: [`super::options::TopologyManagerError`] refuses machines that have them.
    pub fn new(nodes: impl IntoIterator<Item = u32>) -> Self {
        NumaMask(nodes.into_iter().filter(|node| *node < 64).fold(0, |bits, node| bits | 1 << node))
    }

    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn has(self, node: u32) -> bool {
        node < 64 && self.0 & (1 << node) != 0
    }

    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..64).filter(move |node| self.has(*node))
    }

    #[must_use]
    pub fn and(self, other: NumaMask) -> NumaMask {
        NumaMask(self.0 & other.0)
    }

    /// Fewer nodes, or as many and lower ones.
    pub fn narrower_than(self, other: NumaMask) -> bool {
        (self.count(), self) < (other.count(), other)
    }
}

/// All sets of these nodes but the empty one: one node first, then two, each size in the order of the nodes.
pub fn combinations_of(nodes: &[u32]) -> Vec<NumaMask> {
    (1..=nodes.len()).flat_map(|size| choose(nodes, size)).map(NumaMask::new).collect()
}

/// All choices of `size` of these, in their order.
pub fn choose(from: &[u32], size: usize) -> Vec<Vec<u32>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in from.iter().enumerate() {
        for mut rest in choose(&from[at + 1..], size - 1) {
            rest.insert(0, *first);
            all.push(rest);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_combinations() {
        let mask = |nodes: &[u32]| NumaMask::new(nodes.iter().copied());
        for (narrow, wide) in [(&[0][..], &[1][..]), (&[3], &[0, 1]), (&[0, 1], &[0, 2]), (&[1, 2], &[0, 3])] {
            assert!(mask(narrow).narrower_than(mask(wide)) && !mask(wide).narrower_than(mask(narrow)));
        }
        assert!(!mask(&[2]).narrower_than(mask(&[2])));
        let all: Vec<Vec<u32>> = combinations_of(&[0, 2, 5]).into_iter().map(|m| m.nodes().collect()).collect();
        assert_eq!(all, [vec![0], vec![2], vec![5], vec![0, 2], vec![0, 5], vec![2, 5], vec![0, 2, 5]]);
        assert_eq!(mask(&[63, 64, 1000]).nodes().collect::<Vec<_>>(), [63]);
        assert_eq!(mask(&[1, 2]).and(mask(&[2, 3])), mask(&[2]));
    }
}
