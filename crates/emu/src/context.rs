//! The state of a work-group while it runs: contexts (threads in lockstep, with their registers and position) and what they share.

use crate::code::{Address, Index};
use crate::lanes::{B32, B64, File, Files, LANES, Slot};
use crate::launch::Launch;
use crate::matrix::agents::Agents;
use crate::matrix::state::{Barrier, Flight, Works};
use crate::op::Fault;
use crate::poison::Poison;
use crate::shadow::{Clocks, Has, Order, SharedShadow, Watch};
use crate::{Counters, EmuError, Location};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// What a context is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// Has arrived at a barrier (0 is the work-group's) and cannot go on yet.
    Waiting {
        barrier: u8,
        site: u32,
    },
    /// Waits for a phase of a transaction barrier, and will ask again.
    Phase {
        tx: usize,
        parity: u32,
        site: u32,
    },
    /// Waits for the other waves of its warpgroup at an instruction they run together.
    Warpgroup {
        site: u32,
    },
    Done,
}

/// An asynchronous copy of one lane that has not been waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) lane: usize,
    /// Number of the lane's copy group it belongs to.
    pub(crate) group: u32,
    /// First byte of shared memory.
    pub(crate) to: usize,
    pub(crate) bytes: usize,
    /// Argument and first byte of its buffer; none fills with zeros.
    pub(crate) from: Option<(usize, usize)>,
    /// The bytes are in shared memory already.
    pub(crate) landed: bool,
}

/// Consecutive threads that run in lockstep: a whole work-group, a role, or a wave.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// First thread.
    pub(crate) first: u32,
    /// Threads.
    pub(crate) lanes: usize,
    pub(crate) files: Files,
    pub(crate) pc: usize,
    pub(crate) state: State,
    pub(crate) pending: Vec<Pending>,
    /// Copy groups closed, per lane.
    pub(crate) committed: Vec<u32>,
    /// What warpgroup instructions are doing with its registers.
    pub(crate) works: Works,
    /// Values that left their type.
    pub(crate) poison: Poison,
    /// Lanes that have not waited for the launches before this one; empty where none has to.
    pub(crate) ahead: Vec<bool>,
}

impl Context {
    pub(crate) fn new(launch: &Launch<'_>, first: u32, lanes: u32) -> Context {
        let s = launch.code.sizes;
        let blocks = (lanes as usize).div_ceil(LANES);
        let mut files = Files {
            r32: File::new(s.uniform32, s.varying32, blocks, B32([u32::MAX; LANES])),
            r64: File::new(s.uniform64, s.varying64, blocks, B64([u64::MAX; LANES])),
            blocks,
        };
        for &(slot, bits) in &launch.code.consts32 {
            files.r32.get_mut(slot).fill(B32([bits; LANES]));
        }
        for &(slot, bits) in &launch.code.consts64 {
            files.r64.get_mut(slot).fill(B64([bits; LANES]));
        }
        for &(slot, wide, bits) in &launch.scalars {
            if wide {
                files.r64.get_mut(slot).fill(B64([bits; LANES]));
            } else {
                files.r32.get_mut(slot).fill(B32([bits as u32; LANES]));
            }
        }
        let lanes = lanes as usize;
        let (committed, works, poison) = (vec![0; lanes], Works::default(), Poison::default());
        Context {
            first,
            lanes,
            files,
            pc: 0,
            state: State::Ready,
            pending: Vec::new(),
            committed,
            works,
            poison,
            ahead: Vec::new(),
        }
    }

    /// Back to the kernel's start, for another work-group. Registers hold NaN patterns until they are written.
    pub(crate) fn reset(&mut self, launch: &Launch<'_>, group: [u32; 3]) {
        let (r32, r64) = (&mut self.files.r32, &mut self.files.r64);
        r32.fill_varying(B32([u32::MAX; LANES]));
        r64.fill_varying(B64([u64::MAX; LANES]));
        for (slot, id) in launch.code.group_slots.iter().zip(group) {
            r32.get_mut(*slot).fill(B32([id; LANES]));
        }
        // Lanes beyond the last thread repeat it, so that what they compute is never out of the ordinary.
        let last = self.first + self.lanes as u32 - 1;
        for (b, block) in r32.get_mut(launch.code.local_slot).iter_mut().enumerate() {
            for (l, x) in block.0.iter_mut().enumerate() {
                *x = (self.first + (b * LANES + l) as u32).min(last);
            }
        }
        for flag in &launch.code.flags {
            r32.get_mut(*flag).fill(B32([0; LANES]));
        }
        self.pc = 0;
        self.state = State::Ready;
        self.pending.clear();
        self.committed.fill(0);
        self.works.reset(launch.code.reg_names.len());
        self.poison.clear();
        self.ahead.clear();
        if launch.early {
            self.ahead.resize(self.lanes, true);
        }
    }

    /// The lanes in a mask have waited for the launches before this one.
    pub(crate) fn waited(&mut self, mask: Slot) {
        let lanes: Vec<usize> = self.active(mask).collect();
        for lane in lanes {
            if let Some(ahead) = self.ahead.get_mut(lane) {
                *ahead = false;
            }
        }
        if !self.ahead.contains(&true) {
            self.ahead.clear();
        }
    }

    /// Lanes of a block that exist and are in a mask, one bit each.
    #[inline]
    pub(crate) fn bits(&self, mask: Slot, block: usize) -> u32 {
        let n = (self.lanes - block * LANES).min(LANES);
        let all = (1u32 << n) - 1;
        if !mask.is_some() {
            return all;
        }
        let m = &self.files.r32.block(mask, block).0;
        (0..LANES).fold(0, |bits, l| bits | ((m[l] != 0) as u32) << l) & all
    }
    /// Lanes in a mask, in order.
    pub(crate) fn active(&self, mask: Slot) -> impl Iterator<Item = usize> {
        (0..self.files.blocks).flat_map(move |b| {
            let bits = self.bits(mask, b);
            (0..LANES).filter(move |l| bits >> l & 1 != 0).map(move |l| b * LANES + l)
        })
    }
    /// A 32-bit value of a lane.
    pub(crate) fn word(&self, slot: Slot, lane: usize) -> u32 {
        self.files.r32.block(slot, lane / LANES).0[lane % LANES]
    }
    pub(crate) fn any(&self, mask: Slot) -> bool {
        (0..self.files.blocks).any(|b| self.bits(mask, b) != 0)
    }
    /// First lane that is not in a mask.
    pub(crate) fn missing(&self, mask: Slot) -> Option<usize> {
        if !mask.is_some() {
            return None;
        }
        (0..self.lanes).find(|&l| self.bits(mask, l / LANES) >> (l % LANES) & 1 == 0)
    }
    /// First lane that a fault really concerns: lanes outside the mask or beyond the last thread may compute anything. A uniform
    /// result concerns every lane.
    pub(crate) fn guilty(&self, fault: &Fault, mask: Slot, result: Slot) -> Option<usize> {
        let mut active = self.active(mask);
        if result.is_uniform() { active.next() } else { active.find(|l| fault.lanes.contains(l)) }
    }
    /// Element indices of the lanes of a block.
    #[inline]
    pub(crate) fn addresses(&self, a: &Address, block: usize) -> [i64; LANES] {
        let mut at = [a.offset; LANES];
        match a.index {
            Index::None => {}
            Index::I32(s) => {
                let x = &self.files.r32.block(s, block).0;
                at.iter_mut().zip(x).for_each(|(at, &x)| *at = at.wrapping_add(x as i32 as i64));
            }
            Index::U32(s) => {
                let x = &self.files.r32.block(s, block).0;
                at.iter_mut().zip(x).for_each(|(at, &x)| *at = at.wrapping_add(x as i64));
            }
            Index::I64(s) => add64(&mut at, self.files.r64.block(s, block)),
        }
        if a.cursor.is_some() {
            add64(&mut at, self.files.r64.block(a.cursor, block));
        }
        at
    }
}

#[inline]
fn add64(at: &mut [i64; LANES], x: &B64) {
    at.iter_mut().zip(x.0).for_each(|(at, x)| *at = at.wrapping_add(x as i64));
}

/// Arrivals at one barrier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrivals {
    /// Threads waiting.
    pub(crate) arrived: u32,
    /// Threads that open it; 0 while nobody waits.
    pub(crate) needed: u32,
}

/// A use of a work-group's shared memory by a thread of another one of its cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    /// Rank of who did so.
    pub(crate) rank: u32,
    pub(crate) thread: u32,
    /// Domain of the thread's clocks, and its epoch.
    pub(crate) domain: usize,
    pub(crate) epoch: u32,
    pub(crate) site: u32,
}

/// What the contexts of a work-group share.
pub(crate) struct Team {
    pub(crate) id: [u32; 3],
    /// Position in the cluster.
    pub(crate) rank: u32,
    /// Last use of this work-group's shared memory or barriers by each other one of the cluster, thread by thread's wave.
    pub(crate) visits: Vec<Visit>,
    /// Number of the work-group in the launch.
    pub(crate) number: u64,
    pub(crate) shared: Vec<u32>,
    /// Watches initialisation and races, if either is asked for.
    pub(crate) shadow: Option<SharedShadow>,
    pub(crate) clocks: Clocks,
    /// What it has said to other work-groups, and heard of them.
    pub(crate) order: Order,
    pub(crate) barriers: [Arrivals; 17],
    /// Transaction barriers of all arrays, one after another.
    pub(crate) tx: Vec<Barrier>,
    /// Some phase has completed since waiting contexts were last asked.
    pub(crate) woken: bool,
    /// Each wave's last bulk store: its epoch, who issued it, where.
    pub(crate) stored: Vec<Option<(u32, u32, u32)>>,
    /// Bulk loads that have not landed.
    pub(crate) in_flight: Vec<Flight>,
    pub(crate) agents: Agents,
    /// Loop iterations spent.
    pub(crate) steps: u64,
    pub(crate) counters: Counters,
    pub(crate) rng: ChaCha8Rng,
}

impl Team {
    pub(crate) fn new(launch: &Launch<'_>, rank: u32) -> Team {
        let (code, checks) = (launch.code, launch.options.checks);
        let agents = Agents::new(code);
        let names = agents.names(code);
        let width = if code.uses.partial_barriers { code.wave } else { code.threads };
        let clocks = Clocks::of_cluster(code.threads, width, names.len(), rank, code.cluster);
        let granule = code.shared.iter().map(|s| s.scalar.bytes()).min().unwrap_or(4);
        let shadow = (checks.initialised || checks.shared_races).then(|| {
            let watch = Watch { initialised: checks.initialised, races: checks.shared_races };
            let has = Has { atomics: code.uses.shared_atomics, copies: !code.copies.is_empty(), peers: code.peer_reads };
            SharedShadow::new(code.shared_bytes, granule.trailing_zeros(), clocks.domains(), watch, has, names)
        });
        Team {
            id: [0; 3],
            rank,
            visits: Vec::new(),
            number: 0,
            shared: vec![0; code.shared_bytes.div_ceil(4)],
            shadow,
            clocks,
            order: Order::default(),
            barriers: [Arrivals::default(); 17],
            tx: vec![Barrier::default(); code.tx_barriers.iter().map(|t| t.len as usize).sum()],
            woken: false,
            stored: vec![None; code.threads.div_ceil(code.wave) as usize],
            in_flight: Vec::new(),
            agents,
            steps: 0,
            counters: Counters::default(),
            rng: ChaCha8Rng::seed_from_u64(0),
        }
    }

    /// Ready for another work-group; counters go on.
    pub(crate) fn reset(&mut self, launch: &Launch<'_>, number: u64) {
        let [gx, gy, _] = launch.grid.map(|g| g as u64);
        self.id = [(number % gx) as u32, (number / gx % gy) as u32, (number / gx / gy) as u32];
        self.number = number;
        self.shared.fill(u32::MAX);
        if let Some(s) = &mut self.shadow {
            s.reset();
        }
        self.clocks.reset();
        self.order = Order::default();
        self.barriers = [Arrivals::default(); 17];
        self.tx.fill(Barrier::default());
        self.woken = false;
        self.stored.fill(None);
        self.in_flight.clear();
        self.visits.clear();
        self.steps = 0;
        self.rng = ChaCha8Rng::seed_from_u64(launch.options.seed);
        self.rng.set_stream(number);
    }

    pub(crate) fn location(&self, launch: &Launch<'_>, site: u32, thread: u32) -> Box<Location> {
        let statement = launch.code.statements.get(site as usize).cloned().unwrap_or_default();
        Box::new(Location { kernel: launch.code.name.clone(), statement, group: self.id, thread })
    }

    /// Orders threads at a barrier.
    pub(crate) fn order(&mut self, launch: &Launch<'_>, threads: &[(u32, u32)]) -> Result<(), EmuError> {
        self.clocks.barrier(threads);
        self.bounded(launch)
    }
    /// Orders the threads of one wave.
    pub(crate) fn order_wave(&mut self, launch: &Launch<'_>, thread: u32) -> Result<(), EmuError> {
        self.clocks.wave_barrier(thread);
        self.bounded(launch)
    }
    pub(crate) fn bounded(&self, launch: &Launch<'_>) -> Result<(), EmuError> {
        let watching = self.shadow.is_some() || launch.options.checks.global_races;
        if watching && self.clocks.latest() >= crate::shadow::EPOCHS {
            let what =
                "more than two million barriers in one work-group are too many for the race checks; switch them off".into();
            return Err(EmuError::Unsupported { kernel: launch.code.name.clone(), what });
        }
        Ok(())
    }
}

/// A work-group: its contexts and what they share.
pub(crate) struct Group<'a> {
    pub(crate) launch: &'a Launch<'a>,
    pub(crate) contexts: Vec<Context>,
    pub(crate) team: Team,
}
