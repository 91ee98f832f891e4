//! What a search may change where a plan is refused.

use crate::plan::{Chiral, Common, Key, Refusal};

/// Keys whose change may lift the refusal; empty where no plan can.
pub fn remedies(refusal: &Refusal) -> Vec<Key> {
    use Chiral::*;
    use Common::*;
    let side = |key: &Key, chiral: &[Chiral], common: &[Common]| -> Vec<Key> {
        let own = chiral.iter().map(|k| if matches!(key, Key::B(_)) { Key::B(*k) } else { Key::A(*k) });
        own.chain(common.iter().map(|k| Key::C(*k))).collect()
    };
    let both = |chiral: &[Chiral], common: &[Common]| -> Vec<Key> {
        let pairs = chiral.iter().flat_map(|k| [Key::A(*k), Key::B(*k)]);
        pairs.chain(common.iter().map(|k| Key::C(*k))).collect()
    };
    match refusal {
        Refusal::Value { key, .. } | Refusal::Grouped { key, .. } | Refusal::TwoTensors { key, .. } => vec![*key],
        Refusal::Empty { .. } => Vec::new(),
        Refusal::Feature { .. } => both(&[Acp, Clu], &[Lwv, Uni, Ice, Sks, Rdf]),
        Refusal::ThreadGrid { .. } => both(&[], &[Skw, Mac, Uni]),
        Refusal::TileTooLarge { mic, .. } => side(mic, &[Mic], &[Mac, Skw]),
        Refusal::TileOverEdge { mic, .. } => side(mic, &[Mic], &[Mac, Skw, Edg]),
        Refusal::Workspace { .. } => both(&[Wos], &[Ice, Sks, Tsp]),
        Refusal::LoadShare { mic, .. } => side(mic, &[Mic], &[Unr, Mac, Skw, Lwv]),
        Refusal::PaddedRows { wos, .. } => side(wos, &[Wos], &[]),
        Refusal::PackShare { wos, .. } => side(wos, &[Wos, Mic], &[Unr, Mac]),
        Refusal::Stagger { .. } => both(&[], &[Ufo, Unr]),
        Refusal::Strip { .. } => both(&[], &[Naw, Gal, Ice]),
        Refusal::NotContiguous { key, .. } => side(key, &[Vew, Glw, Wos], &[]),
        Refusal::VectorAlign { key, .. } => side(key, &[Vew, Glw, Wos], &[]),
        Refusal::VectorWide { key, .. } => side(key, &[Glw, Acp], &[]),
        Refusal::VectorTile { key, .. } => side(key, &[Vew, Glw, Plu, Mic], &[Unr, Mac, Skw]),
        Refusal::VectorEdge { key: Key::C(_), .. } => both(&[Mic], &[Cvw]),
        Refusal::VectorEdge { key, .. } => side(key, &[Vew, Glw, Wos, Mic], &[Unr]),
        Refusal::VectorRunTime { key, .. } => side(key, &[Vew, Glw, Wos], &[Cvw]),
        Refusal::PullBackRunTime { .. } => both(&[], &[Edg]),
        Refusal::VectorStagger { key, .. } => side(key, &[Vew, Glw], &[Ufo]),
        Refusal::FragmentWidth { key, .. } => side(key, &[Vew, Frw, Mic], &[]),
        Refusal::OwnLoads { key: Key::C(key), .. } => both(&[], &[*key, Bim]),
        Refusal::OwnLoads { key, .. } => side(key, &[Mic], &[]),
        Refusal::AsyncAhead { acp, .. } => side(acp, &[Acp], &[Pfg, Buf, Fra, Lwv]),
        Refusal::AsyncBytes { acp, .. } | Refusal::AsyncAlongK { acp } | Refusal::AsyncAlongRows { acp, .. } => {
            side(acp, &[Acp, Glw, Vew, Wos], &[Uni])
        }
        Refusal::Converted { acp, .. } => side(acp, &[Acp], &[Lwv]),
        Refusal::RawLines { .. } => both(&[Acp, Glw, Plu], &[Swp]),
        Refusal::Signed { acp, .. } => side(acp, &[Acp, Wos], &[Lwv]),
        Refusal::CopiedPairs { wos, .. } => side(wos, &[Wos], &[]),
        Refusal::Halo { acp, .. } => side(acp, &[Acp, Mic, Wos], &[Unr, Uni, Mac, Skw, Ufo]),
        Refusal::BulkUnit { acp, .. } => side(acp, &[Acp], &[Uni]),
        Refusal::RawOrder { .. } => both(&[Acp, Wos], &[Rga, Lwv]),
        Refusal::FragmentsWritten { .. } => side(&Key::A(Acp), &[Acp], &[Rga]),
        Refusal::UnitCopy { acp, .. } | Refusal::ShiftWaves { acp, .. } => side(acp, &[Acp], &[Uni, Lwv]),
        Refusal::StagedRows => both(&[], &[Cst, Swp, Uni]),
        Refusal::UnitTypes { .. } | Refusal::UnitFloat8 { .. } | Refusal::UnitWave { .. } => both(&[], &[Uni]),
        Refusal::UnitSplits { .. } => both(&[Acp], &[Rga, Lwv, Uni]),
        Refusal::Turns { .. } => both(&[], &[Png, Lwv, Pst, Mac]),
        Refusal::Cluster { .. } => both(&[Clu, Mic], &[Ice, Sks, Pst, Png, Mac, Skw, Uni]),
        Refusal::Tail { .. } => both(&[Acp], &[Tsp, Edg, Pst]),
        Refusal::UnitThreads { .. } => both(&[], &[Mac, Skw, Uni]),
        Refusal::UnitDepth { .. } | Refusal::UnitSteps { .. } => both(&[], &[Unr, Uni]),
        Refusal::UnitColumns { .. } => side(&Key::B(Mic), &[Mic], &[Uni]),
        Refusal::BulkBox { acp, .. } => side(acp, &[Wos, Mic, Acp], &[Unr, Pst, Ice, Uni]),
        Refusal::MathWidth { .. } => side(&Key::B(Mic), &[Frw, Vew, Mic], &[Mvw]),
        Refusal::WaveShape { .. } => both(&[], &[Wva, Mac, Skw]),
        Refusal::RoleWaves { .. } => both(&[], &[Lwv, Mac, Uni]),
        Refusal::Buffers { .. } => both(&[], &[Buf, Pfg]),
        Refusal::FragmentsAhead { .. } => both(&[], &[Fra, Unr, Uni]),
        Refusal::PromotedTile { .. } => both(&[], &[Unr, Uni]),
        Refusal::PromotedInFlight { .. } => both(&[], &[Fra, Uni]),
        Refusal::ScaledParts { .. } => both(&[], &[Unr, Ice, Ufo]),
        Refusal::NotIeee { .. } => both(&[], &[Bim, Uni, Sks, Ice]),
        Refusal::AtomicsNotAllowed { .. }
        | Refusal::AtomicType { .. }
        | Refusal::AtomicActivation { .. }
        | Refusal::AtomicZeroPoints { .. }
        | Refusal::AtomicGate { .. }
        | Refusal::ReduceSplit { .. } => both(&[], &[Sks, Ice]),
        Refusal::Pairs { .. } => side(&Key::B(Mic), &[Mic, Miw, Frw], &[Bim, Sks, Ice, Edg, Mvw, Swp, Uni]),
        Refusal::ReduceTicketParts => both(&[], &[Rdf]),
        Refusal::ReduceSplitFinish { .. } => both(&[], &[Rdf, Sks, Ice]),
        Refusal::ReduceAtomics { .. } | Refusal::ReduceAtomicType { .. } | Refusal::ReduceAtomicCount { .. } => both(&[], &[Rdf]),
        Refusal::ReduceCluster { .. } => both(&[Clu], &[Rdf, Ice, Sks, Png]),
        Refusal::ReduceFinished { .. } | Refusal::ReduceBlocks { .. } => both(&[Mic], &[Rdf, Mac, Skw, Ice]),
        Refusal::ReduceCarry { .. } => both(&[Mic], &[Rdc, Gal, Pst, Mac, Skw]),
        Refusal::ReduceOperand { .. } => both(&[], &[Rdk]),
        Refusal::StoreUnit { .. } => both(&[Frw, Mic], &[Cvw, Cst]),
        Refusal::StoreAlign { .. } => both(&[], &[Cvw]),
        Refusal::Groups { .. } => both(&[Mic], &[Mac, Skw, Ice, Pst]),
        Refusal::Threads { .. } => both(&[], &[Mac, Lwv]),
        Refusal::Shared { .. } => both(&[Mic, Pad], &[Unr, Buf, Mac, Skw, Cst, Uni]),
        Refusal::Registers { .. } => both(&[Mic], &[Fra, Pfg, Mac, Uni, Mgp]),
        Refusal::Unrolled { .. } => both(&[Mic], &[Unr, Ukl, Fra, Pfg]),
    }
}
