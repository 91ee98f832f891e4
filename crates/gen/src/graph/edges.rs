//! The edges of the search graph: which values of a key are next to which.

use crate::plan::{Chiral, Common, Key, Legal};

/// A value and its neighbours, ascending by value.
pub type Edges = &'static [(u32, &'static [u32])];

const NONE: Edges = &[];
const BIT: Edges = &[(0, &[1]), (1, &[0])];
const POWERS: Edges = &[
    (1, &[2]),
    (2, &[1, 4]),
    (4, &[2, 8]),
    (8, &[4, 16]),
    (16, &[8, 32]),
    (32, &[16, 64]),
    (64, &[16, 32, 128]),
    (128, &[32, 64]),
];

/// Search priority of a key: 1 early, 0 normal, -1 late.
pub fn priority(key: Key) -> i8 {
    match key {
        Key::A(Chiral::Mic) | Key::B(Chiral::Mic) | Key::C(Common::Unr | Common::Ice | Common::Mac | Common::Pfg) => 1,
        Key::C(Common::Szt | Common::Mad | Common::Afi | Common::Mia | Common::Mgp | Common::Ukl | Common::Hnt) => -1,
        _ => 0,
    }
}

/// Edges of a key, and further ones that an extended search follows: for MIOpenGEMM's keys the first are MIOpenGEMM's graph. Those of `MAC`
/// depend on the device.
pub fn edges(key: Key) -> (Edges, Edges) {
    match key {
        Key::A(k) | Key::B(k) => chiral(k),
        Key::C(k) => common(k),
    }
}

/// The values a key may have; of a wide range, its ends and those that a search visits.
pub fn values(key: Key) -> Vec<u32> {
    match key.info().legal {
        Legal::OneOf(values) => values.to_vec(),
        Legal::Range(first, last) if last - first < 16 => (first..=last).collect(),
        Legal::Range(first, last) => {
            let (classic, more) = edges(key);
            classic.iter().chain(more).map(|(value, _)| *value).chain([first, last]).collect()
        }
    }
}

fn chiral(key: Chiral) -> (Edges, Edges) {
    use Chiral::*;
    match key {
        Mic => (
            &[
                (1, &[2, 3]),
                (2, &[1, 3, 4]),
                (3, &[1, 2, 4]),
                (4, &[2, 3, 5, 6]),
                (5, &[2, 4, 6]),
                (6, &[4, 5, 8]),
                (8, &[4, 6, 10]),
                (10, &[8, 6, 5]),
            ],
            &[
                (1, &[4]),
                (4, &[1, 8]),
                (8, &[12, 16]),
                (12, &[8, 16]),
                (16, &[8, 12, 20, 24, 32]),
                (20, &[16, 24]),
                (24, &[16, 20, 28, 32]),
                (28, &[24, 32]),
                (32, &[16, 24, 28]),
            ],
        ),
        Pad => (&[(0, &[1]), (1, &[0, 2]), (2, &[1])], NONE),
        Plu | Liw | Miw | Lor => (BIT, NONE),
        Wos => (&[(0, &[1, 2]), (1, &[0, 2]), (2, &[0, 1])], &[(0, &[3]), (1, &[3]), (3, &[0, 1])]),
        Vew => (&[(1, &[2]), (2, &[1, 4]), (4, &[2, 1])], &[(1, &[4]), (4, &[8]), (8, &[4])]),
        Glw => (
            &[(0, &[1, 2, 4]), (1, &[0, 2, 4]), (2, &[0, 1, 4]), (4, &[0, 1, 2, 8]), (8, &[0, 4])],
            &[(8, &[16]), (16, &[8, 32]), (32, &[16])],
        ),
        Frw => (&[(0, &[1, 2, 4]), (1, &[0, 2, 4]), (2, &[0, 1, 4]), (4, &[0, 1, 2, 8]), (8, &[0, 4, 16]), (16, &[8])], NONE),
        Acp => (BIT, &[(0, &[2, 3]), (1, &[4]), (2, &[0, 3]), (3, &[0, 2]), (4, &[1])]),
        Clu => (&[(1, &[2]), (2, &[1, 4]), (4, &[2, 8]), (8, &[4])], NONE),
    }
}

fn common(key: Common) -> (Edges, Edges) {
    use Common::*;
    match key {
        Unr => (POWERS, NONE),
        Gal => (&[(1, &[2, 3]), (2, &[1, 3]), (3, &[1, 2])], NONE),
        Pun | Iwi | Szt | Mad | Ufo | Afi | Mia | Edg | Cst | Ukl | Hnt | Swp | Png | Rdc | Rdk | Gbi => (BIT, NONE),
        Bim => (&[(0, &[1, 2, 3, 4]), (1, &[0, 2, 3, 4]), (2, &[0, 1, 3, 4]), (3, &[0, 1, 2, 4]), (4, &[0, 1, 2, 3])], NONE),
        Ice => (
            &[
                (1, &[2]),
                (2, &[1, 3, 4]),
                (3, &[1, 2, 4, 6]),
                (4, &[1, 3, 5, 7]),
                (5, &[1, 2, 4, 6, 8]),
                (6, &[1, 3, 5, 7, 9]),
                (7, &[4, 6, 8, 10]),
                (8, &[1, 5, 7, 9, 11]),
                (9, &[6, 8, 10, 12]),
                (10, &[1, 7, 9, 11, 13]),
                (11, &[8, 10, 12, 14]),
                (12, &[1, 9, 11, 13, 14]),
                (13, &[10, 12, 14]),
                (14, &[1, 11, 13]),
            ],
            &[
                (1, &[4, 8]),
                (4, &[8]),
                (8, &[4, 16]),
                (14, &[16]),
                (16, &[8, 14, 32]),
                (32, &[16, 64]),
                (64, &[32, 128]),
                (128, &[64]),
            ],
        ),
        Naw => (&[(16, &[64]), (64, &[16])], NONE),
        Mac | Uni | Pst => (&[], NONE),
        Skw => (&[(7, &[8]), (8, &[7, 9]), (9, &[8, 10]), (10, &[9, 11]), (11, &[10, 12]), (12, &[11, 13]), (13, &[12])], NONE),
        Sks => (BIT, &[(0, &[2]), (1, &[2]), (2, &[0, 1])]),
        Cvw => (&[(1, &[2, 4]), (2, &[1, 4]), (4, &[1, 2])], &[(4, &[8]), (8, &[4])]),
        Wva => (
            &[
                (0, &[4, 8]),
                (1, &[2]),
                (2, &[1, 4]),
                (4, &[0, 2, 8]),
                (8, &[0, 4, 16]),
                (16, &[8, 32]),
                (32, &[16, 64]),
                (64, &[32]),
            ],
            NONE,
        ),
        Mvw => (&[(1, &[4, 8]), (2, &[1, 4]), (4, &[1, 2, 8]), (8, &[1, 4, 16]), (16, &[8])], NONE),
        Mgp => (&[(0, &[1, 2, 3]), (1, &[0, 2]), (2, &[0, 1, 3]), (3, &[0, 2, 4]), (4, &[0, 3])], NONE),
        Pfg => (&[(0, &[1]), (1, &[0, 2]), (2, &[1, 3]), (3, &[2, 4]), (4, &[3])], NONE),
        Buf => {
            (&[(1, &[2]), (2, &[1, 3]), (3, &[2, 4]), (4, &[3, 5]), (5, &[4, 6]), (6, &[5, 7]), (7, &[6, 8]), (8, &[7])], NONE)
        }
        Stp => (&[(0, &[1, 2]), (1, &[0, 2]), (2, &[0, 1])], NONE),
        Fra => (&[(0, &[1]), (1, &[0, 2]), (2, &[1])], NONE),
        Lwv => (&[(0, &[1, 2, 4]), (1, &[0, 2]), (2, &[0, 1, 4]), (4, &[0, 2, 8]), (8, &[4])], NONE),
        Rga => (&[(0, &[2, 4]), (2, &[0, 4]), (4, &[0, 2])], NONE),
        Lsu => (NONE, &[(1, &[2, 8]), (2, &[1, 4]), (4, &[2, 8]), (8, &[1, 4, 16]), (16, &[8, 32]), (32, &[16])]),
        Rdf => (&[(0, &[1, 2, 5]), (1, &[0, 2]), (2, &[0, 1, 3, 4]), (3, &[2]), (4, &[2]), (5, &[0])], NONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_lead_to_legal_values() {
        for key in Key::all() {
            let (classic, more) = edges(key);
            for (from, to) in classic.iter().chain(more) {
                assert!(key.info().legal.contains(*from), "{key}{from}");
                for v in to.iter() {
                    assert!(key.info().legal.contains(*v) && v != from, "{key}{from} -> {v}");
                }
            }
        }
    }
}
