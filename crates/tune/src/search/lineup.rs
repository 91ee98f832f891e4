//! Problems that several workers search at a time, in an order.

use std::collections::HashMap;

/// Places between a search and those whose winners it may start from.
const APART: usize = 8;

/// The order in which several workers take problems.
///
/// A search starts from the winners of near problems. The winners known at its start depend on the speed of other workers. So it follows only
/// problems that are eight places or more before it. Beside W workers they have ended, unless one search lasts as long as 7 / (W - 1) others.
/// Problems that are not in the order may always be followed.
///
/// ```
/// use tilewright_tune::search::Lineup;
///
/// // A search starts from winners of problems eight places or more before it, however fast other workers are.
/// let lineup = Lineup::new((0..20).map(|n| format!("layer {n}")));
/// assert!(lineup.follows("layer 9", "layer 1") && !lineup.follows("layer 9", "layer 8"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Lineup {
    places: HashMap<String, usize>,
}

impl Lineup {
    /// The order of these problems, by their names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Lineup {
        Lineup { places: names.into_iter().enumerate().map(|(place, name)| (name, place)).collect() }
    }

    /// True if the search of one problem may start from the winners of another.
    pub fn follows(&self, name: &str, other: &str) -> bool {
        match (self.places.get(name), self.places.get(other)) {
            (Some(place), Some(before)) => name == other || before + APART <= *place,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_follows_those_far_before_it() {
        let lineup = Lineup::new((0..20).map(|n| format!("p{n}")));
        let followed = |name: &str| (0..20).filter(|n| lineup.follows(name, &format!("p{n}"))).collect::<Vec<_>>();
        assert_eq!((followed("p0"), followed("p7"), followed("p10")), (vec![0], vec![7], vec![0, 1, 2, 10]));
        assert!(lineup.follows("p0", "another") && lineup.follows("another", "p0"));
        assert!(Lineup::default().follows("p1", "p0"));
    }
}
