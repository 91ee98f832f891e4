//! The halo of a result tile (`ACP4`): overlapping windows, copied to shared memory once per element.
//!
//! The tensor is a sequence of *positions*: its dimensions in their order, each as long as rows and taps reach. Positions outside of the
//! tensor read as zeros. A row is a position. A tap is a distance, the same for all rows. The rows of a tile with their taps are therefore
//! one range of positions, which wraps at image rows and samples as the tile does. The channels of a position are one row of shared
//! memory. Only filters move from k-tile to k-tile.
//!
//! `ldmatrix` reads eight neighbouring rows at once, 16 bytes of each. Their distance in shared memory is the convolution's stride. Padding
//! avoids bank conflicts for odd strides only. Without padding (`PAD0`) chunks of 16 bytes are permuted, which works for every power of two.

use super::grid::gcd as gcd32;
use super::reach;
use super::tile::{Along, OperandTiling, Source};
use serde::Serialize;
use tilewright_ir::ASYNC_COPY_BYTES;
use tilewright_ir::affine::{Affine, gcd};
use tilewright_ir::layout::{Axis, Layout, bank_cycles};
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{COL, Digit, Dimension, Dimensions, G, ROW, View};

/// Most lines: shared memory never holds as many.
const MOST_LINES: i64 = 1 << 14;
/// Positions are counted in 32 bits, with room for a tile beyond the last.
const MOST_POSITIONS: i64 = 1 << 30;

/// An operand's windows of a result tile in shared memory.
///
/// ```
/// use tilewright_gen::plan::{Constraint, Plan};
/// # use tilewright_problem::Problem;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Target;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // Images of 8 x 8 pixels with 32 channels under 3 x 3 taps.
/// let problem = "conv_fwd_nhwc_n2_g1_c32_k32_in8x8_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1048576_f16";
/// let space = Space::new(&Problem::parse(problem)?, &target)?;
/// let keys = "A_MIC2_ACP4__B_MIC4_ACP1_GLW8_PLU1__C_UNI1_MAC64_SKW10_UNR32_PFG2_BUF3_EDG1_BIM1";
/// let plan: Plan = Constraint::parse(keys)?.apply(&Plan::default()).into();
/// let derived = space.resolve(&plan)?.spec;
/// let halo = derived.schedule.copies[0].halo().expect("a halo");
/// // A pixel's 3 x 3 taps span 23 positions of an image that is 10 wide with its padding.
/// assert_eq!((halo.channels, halo.beyond), (32, 23));
/// // Each position of the tile is copied once, not once for each tap.
/// assert!(halo.copied() < 64 * 9 * 32);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Halo {
    /// The tensor by (g, position, channel).
    pub view: View,
    /// The position of a row under its first tap.
    pub row: Affine,
    /// How far an element of k is from a row's first element in shared memory.
    pub k: Affine,
    /// Positions from a row's first tap up to its last, both included.
    pub beyond: i64,
    /// Lines from a row to its neighbour, and bytes of an element.
    apart: u32,
    bytes: u32,
    /// Elements of a line.
    pub channels: u32,
    /// Lines as load threads copy them: rows are positions from the tile's first row on, k channels.
    pub tile: OperandTiling,
}

/// What a tile asks for.
pub(super) struct Wanted {
    /// k-tile, and what instructions take of it at once.
    pub k_tile: u32,
    pub k_step: u32,
    /// Threads that copy.
    pub threads: u32,
    /// Tiles start at multiples of this.
    pub grain: u64,
}

impl Halo {
    /// Elements from one line to the next.
    pub const fn pitch(&self) -> u32 {
        self.channels + self.tile.pad
    }
    /// Lines.
    pub const fn lines(&self) -> u32 {
        self.tile.macro_tile
    }
    /// Elements that a work-group copies for a result tile.
    pub const fn copied(&self) -> u32 {
        self.lines() * self.channels
    }
    /// Elements that it takes of shared memory: whole rows of all banks, within which chunks are permuted.
    pub const fn elements(&self) -> u32 {
        (self.lines() * self.pitch()).next_multiple_of(128 / self.bytes)
    }
    /// (position, channel) to the element's place in shared memory.
    pub fn layout(&self) -> Layout {
        let layout = self.tile.shared(self.channels);
        let apart = self.apart.saturating_mul(self.pitch() * self.bytes);
        if self.tile.pad == 0 && apart.is_power_of_two() { layout.apart(apart, self.bytes) } else { layout }
    }
    /// Passes over the banks in which eight neighbouring rows are read, 16 bytes of each, and the fewest.
    pub fn passes(&self) -> (u64, u64) {
        let layout = self.layout();
        let place =
            |row: u32| layout.at(Axis::Position, &[(Axis::Row, i64::from(row) * i64::from(self.apart))]) * i64::from(self.bytes);
        let read: Vec<(usize, i64)> = (0..8).map(|row| (row as usize, place(row))).collect();
        bank_cycles(&read, 16)
    }

    /// Derives the halo of an operand's tiles.
    ///
    /// # Errors
    /// The reason why the operand has no halo, in words.
    pub(super) fn new(tensor: &Tensor, o: &OperandTiling, wanted: &Wanted) -> Result<Halo, String> {
        let Some(dims) = tensor.view.dims() else {
            return Err("its addresses are no positions along dimensions of memory".into());
        };
        let k = tensor.view.extent[COL];
        if !k.is_multiple_of(wanted.k_tile.into()) {
            return Err(format!("UNR{} does not divide k = {k}", wanted.k_tile));
        }
        let positions = Positions::new(&dims, tensor.view.extent, o.macro_tile)?;
        let channels = u32::try_from(positions.channel.extent).unwrap_or(u32::MAX);
        if !channels.is_multiple_of(wanted.k_step) {
            return Err(format!("the k-step of {} does not divide the {channels} channels of a tap", wanted.k_step));
        }
        let lines = positions.lines(o.macro_tile, wanted.grain)?;
        let extent = [tensor.view.extent[G], (positions.count + MOST_LINES).unsigned_abs(), channels.into()];
        let view = positions.view(&dims, extent);
        let of_positions = Tensor { view, ..tensor.clone() };
        let bytes = tensor.scalar.bytes();
        let width = reach::vector_width(&of_positions, COL, (ASYNC_COPY_BYTES[2] / bytes).max(1));
        if width * bytes < ASYNC_COPY_BYTES[0] {
            return Err(format!("its channels allow copies of {} bytes, and copies move at least 4", width * bytes));
        }
        let at_once = gcd32(wanted.threads, channels / width);
        let across = (wanted.threads / at_once).max(1);
        let lines = lines.next_multiple_of(across);
        let tile = OperandTiling {
            macro_tile: lines,
            load_row: lines / across,
            load_k: channels / at_once,
            load_interleave: true,
            load_order: Along::K,
            load_width: width,
            load_along: Along::K,
            store_width: width,
            shared_along: Along::K,
            source: Source::InPlace,
            ..o.clone()
        };
        let of_k = positions.channel.form().plus(&positions.tap, i64::from(channels + tile.pad));
        let k = of_k.simplified(&tensor.view.extent);
        let row = positions.row.simplified(&tensor.view.extent);
        let apart = positions.digits.iter().find(|(_, values, _)| *values > 1).map_or(1, |(.., distance)| *distance);
        let apart = u32::try_from(apart).unwrap_or(1).max(1);
        Ok(Halo { view: of_positions.view, row, k, beyond: positions.reach + 1, apart, bytes, channels, tile })
    }
}

/// A tensor's dimensions as one line of positions.
struct Positions {
    /// The digit of k along which channels are neighbours, and the dimension that it moves in.
    channel: Digit,
    lead: usize,
    /// The dimensions that rows and taps move in: which, where its first position is, and positions between its neighbours and in all.
    spans: Vec<(usize, i64, [i64; 2])>,
    /// Position of a row under the first tap, and distance of a tap from that.
    row: Affine,
    tap: Affine,
    /// Farthest distance of a tap.
    reach: i64,
    /// Places and values of the digits of rows, and positions between two values: ascending.
    digits: Vec<(i64, i64, i64)>,
    /// Positions in all.
    count: i64,
}

impl Positions {
    fn new(dims: &Dimensions, extent: [u64; 3], rows: u32) -> Result<Positions, String> {
        let axis = |i: usize| dims.digits[i].axis;
        let lowest = |&(i, step): &(usize, i64)| axis(i) == COL && dims.digits[i].div == 1 && step == 1;
        let lead = dims.dims.iter().position(|dim| dim.stride == 1 && dim.steps.iter().any(&lowest));
        let Some(lead) = lead else { return Err("it is not contiguous along k".into()) };
        let channel = dims.dims[lead].steps.iter().find(|step| lowest(step)).map(|(i, _)| dims.digits[*i]);
        let Some(channel) = channel.filter(|_| dims.dims[lead].steps.iter().all(|s| lowest(s) || axis(s.0) == G)) else {
            return Err("rows or taps also move along its contiguous dimension".into());
        };
        // Tiles may end beyond the last row.
        let values = |i: usize| {
            let digit = &dims.digits[i];
            let beyond = extent[ROW].next_multiple_of(u64::from(rows.max(1))) as i64;
            if digit.last && digit.axis == ROW { (beyond + digit.div - 1) / digit.div } else { digit.extent }
        };
        let mut of = Positions {
            channel,
            lead,
            spans: Vec::new(),
            row: Affine::default(),
            tap: Affine::default(),
            reach: 0,
            digits: dims.digits.iter().filter(|d| d.axis == ROW).map(|d| (d.div, d.extent, 0)).collect(),
            count: 1,
        };
        let moving = |dim: &Dimension| dim.steps.iter().any(|(i, _)| axis(*i) != G);
        for (which, dim) in dims.dims.iter().enumerate().filter(|(which, dim)| *which != lead && moving(dim)) {
            let (mut low, mut length, between) = (0, 1, of.count);
            for &(i, step) in &dim.steps {
                let span = step.checked_mul(values(i) - 1).ok_or("a span of positions is too long")?;
                match axis(i) {
                    ROW if step < 0 => return Err("the stride of its rows is negative".into()),
                    ROW => {
                        of.row = of.row.plus(&dims.digits[i].form(), step * between);
                        let div = dims.digits[i].div;
                        of.digits.iter_mut().filter(|d| d.0 == div).for_each(|d| d.2 += step * between);
                    }
                    COL => {
                        low += span.min(0);
                        of.tap = of.tap.plus(&dims.digits[i].form(), step * between);
                        of.reach += span.abs() * between;
                    }
                    _ => return Err("batch entries and pixels move along the same dimension".into()),
                }
                length += span.abs();
            }
            of.tap.constant -= low * between;
            of.spans.push((which, low, [between, length]));
            of.count = between.checked_mul(length).filter(|count| *count < MOST_POSITIONS).ok_or("it has too many positions")?;
        }
        Ok(of)
    }

    /// Most positions of a tile of `rows` rows that starts at multiples of `grain`.
    fn lines(&self, rows: u32, grain: u64) -> Result<u32, String> {
        let (apart, grain) = (i64::from(rows) - 1, grain.max(1) as i64);
        let (mut farthest, mut lines, mut below) = (0, self.reach + 1, 0);
        for (place, values, distance) in &self.digits {
            if *values > 1 && *distance <= farthest {
                return Err("its rows are not in ascending order along dimensions of memory".into());
            }
            farthest += distance * (values - 1);
            // How often the digit changes between the tile's first row and its last, and what a change is more than going on below it.
            let (gain, least) = (distance - below, apart / place);
            let most = (apart + place - gcd(grain, *place)) / place;
            lines += gain * if gain > 0 { most } else { least };
            below = distance * values;
        }
        u32::try_from(lines)
            .ok()
            .filter(|lines| i64::from(*lines) < MOST_LINES / 2)
            .ok_or(format!("a tile has too many positions: {lines}"))
    }

    /// The tensor by (g, position, channel).
    fn view(&self, dims: &Dimensions, extent: [u64; 3]) -> View {
        // Digits of the batch stay. After them come the channels, and a digit of positions for each dimension.
        let mut digits = dims.digits.clone();
        let first = digits.len();
        digits.push(Digit { last: true, ..self.channel });
        let spans = self.spans.iter().enumerate().map(|(n, (.., [between, length]))| {
            let last = n + 1 == self.spans.len();
            Digit { axis: ROW, div: *between, extent: *length, last }
        });
        digits.extend(spans);
        let of_batch = |dim: &Dimension| dim.steps.iter().copied().filter(|(i, _)| dims.digits[*i].axis == G).collect::<Vec<_>>();
        let mut of = dims.dims.clone();
        of[self.lead].steps = [vec![(first, 1)], of_batch(&of[self.lead])].concat();
        for (n, (which, low, _)) in self.spans.iter().enumerate() {
            of[*which].start += low;
            of[*which].steps = vec![(first + 1 + n, 1)];
        }
        Dimensions { digits, dims: of, base: dims.base }.view(extent)
    }
}
