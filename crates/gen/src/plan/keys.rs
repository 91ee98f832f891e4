//! The registry of hyperparameters: every key's name, meaning, source, legal values and default.
//!
//! A key's meaning is written here and nowhere else; [`super::derive`](mod@super::derive) gives it effect.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Keys that exist once per factor (MIOpenGEMM calls them chiral).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "CHIRAL documents each key")]
pub enum Chiral {
    Mic,
    Pad,
    Plu,
    Liw,
    Miw,
    Wos,
    Vew,
    Lor,
    Glw,
    Frw,
    Acp,
    Clu,
}

/// Keys that exist once per plan, written in part C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "COMMON documents each key")]
pub enum Common {
    Unr,
    Gal,
    Pun,
    Ice,
    Iwi,
    Szt,
    Mad,
    Naw,
    Ufo,
    Mac,
    Skw,
    Afi,
    Mia,
    Edg,
    Sks,
    Cvw,
    Cst,
    Wva,
    Mvw,
    Mgp,
    Ukl,
    Pfg,
    Buf,
    Stp,
    Fra,
    Lwv,
    Hnt,
    Bim,
    Uni,
    Swp,
    Pst,
    Png,
    Rga,
    Rdf,
    Rdc,
    Lsu,
    Rdk,
    Gbi,
}

/// Number of [`Chiral`] keys.
pub const CHIRALS: usize = 12;
/// Number of [`Common`] keys.
pub const COMMONS: usize = 38;

/// One of the three parts of a plan's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// Operand A.
    A,
    /// Operand B.
    B,
    /// The rest.
    C,
}

/// A key together with its part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// Of operand A.
    A(Chiral),
    /// Of operand B.
    B(Chiral),
    /// Of the plan as a whole.
    C(Common),
}

/// Where a key was first described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum System {
    /// One of MIOpenGEMM's 27 hyperparameters.
    MiOpenGemm,
    /// AMD's Tensile (rocBLAS).
    Tensile,
    /// TVM's double-buffer schedules.
    Tvm,
    /// Composable Kernel's wavelet pipeline.
    ComposableKernel,
    /// NVIDIA's CUTLASS.
    Cutlass,
    /// AMD's rocMLIR.
    RocMlir,
    /// SOFIE's batched convolutions.
    Sofie,
    /// tilewright's own.
    Tilewright,
}

/// The values a parser takes. What a problem or a device takes is asked later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legal {
    /// Inclusive range.
    Range(u32, u32),
    /// Exactly these, ascending.
    OneOf(&'static [u32]),
}

/// All there is to know about a key.
#[derive(Clone, Copy, Debug)]
pub struct KeyInfo {
    /// Three upper-case letters.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What it costs and when it pays.
    pub cost: &'static str,
    /// Where it comes from.
    pub system: System,
    /// What the parser takes.
    pub legal: Legal,
    /// The value when a plan does not name the key. For the keys of other systems it reproduces MIOpenGEMM's behaviour.
    pub default: u32,
}

impl Legal {
    /// True if the value may be written.
    pub fn contains(self, value: u32) -> bool {
        match self {
            Legal::Range(low, high) => (low..=high).contains(&value),
            Legal::OneOf(values) => values.contains(&value),
        }
    }
}

impl fmt::Display for Legal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Legal::Range(low, high) => write!(f, "{low} to {high}"),
            Legal::OneOf(values) => {
                for (i, v) in values.iter().enumerate() {
                    let separator = if i == 0 { "" } else { ", " };
                    write!(f, "{separator}{v}")?;
                }
                Ok(())
            }
        }
    }
}

impl KeyInfo {
    /// True for one of MIOpenGEMM's 27 hyperparameters: a full text must name it.
    pub fn is_classic(&self) -> bool {
        self.system == System::MiOpenGemm
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::MiOpenGemm => "MIOpenGEMM",
            System::Tensile => "Tensile",
            System::Tvm => "TVM",
            System::ComposableKernel => "Composable Kernel",
            System::Cutlass => "CUTLASS",
            System::RocMlir => "rocMLIR",
            System::Sofie => "SOFIE",
            System::Tilewright => "tilewright",
        })
    }
}

impl Part {
    /// In printing order.
    pub const ALL: [Part; 3] = [Part::A, Part::B, Part::C];

    /// `A`, `B` or `C`.
    pub const fn name(self) -> &'static str {
        match self {
            Part::A => "A",
            Part::B => "B",
            Part::C => "C",
        }
    }
    /// The part's keys, in printing order.
    pub fn keys(self) -> Vec<Key> {
        match self {
            Part::A => Chiral::ALL.iter().map(|k| Key::A(*k)).collect(),
            Part::B => Chiral::ALL.iter().map(|k| Key::B(*k)).collect(),
            Part::C => Common::ALL.iter().map(|k| Key::C(*k)).collect(),
        }
    }
}

impl Key {
    /// Every key, in printing order.
    pub fn all() -> impl Iterator<Item = Key> {
        let a = Chiral::ALL.iter().map(|k| Key::A(*k));
        let b = Chiral::ALL.iter().map(|k| Key::B(*k));
        a.chain(b).chain(Common::ALL.iter().map(|k| Key::C(*k)))
    }
    /// Its place among all keys, in printing order.
    pub(super) const fn index(self) -> usize {
        match self {
            Key::A(k) => k as usize,
            Key::B(k) => CHIRALS + k as usize,
            Key::C(k) => 2 * CHIRALS + k as usize,
        }
    }
    /// The key's part of the plan.
    pub const fn part(self) -> Part {
        match self {
            Key::A(_) => Part::A,
            Key::B(_) => Part::B,
            Key::C(_) => Part::C,
        }
    }
}

impl Chiral {
    /// In printing order.
    pub const ALL: [Chiral; CHIRALS] = {
        use Chiral::*;
        [Mic, Pad, Plu, Liw, Miw, Wos, Vew, Lor, Glw, Frw, Acp, Clu]
    };
}

impl Common {
    /// In printing order.
    pub const ALL: [Common; COMMONS] = {
        use Common::*;
        [
            Unr, Gal, Pun, Ice, Iwi, Szt, Mad, Naw, Ufo, Mac, Skw, Afi, Mia, Edg, Sks, Cvw, Cst, Wva, Mvw, Mgp, Ukl, Pfg, Buf,
            Stp, Fra, Lwv, Hnt, Bim, Uni, Swp, Pst, Png, Rga, Rdf, Rdc, Lsu, Rdk, Gbi,
        ]
    };
}
