//! The form of a convolution: independent choices of how it becomes a matrix product, and which of their combinations a convolution has.

use crate::conv::{Conv, Direction, Layout};
use crate::error::ProblemError;
use crate::gate::GRANULES;
use crate::problem::Problem;

/// How a convolution, or a gated product, becomes a matrix product. Has no effect on other problems. Filter gradients sum over the samples in
/// every form.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Conv, Problem};
///
/// let conv = Problem::Conv(Conv::new(Scalar::F32, 2, 8, 16, &[10, 10], &[3, 3]).build()?);
/// let [apart, merged] = [ConvForm::PER_SAMPLE, ConvForm::MERGED].map(|form| lower(&conv, form));
/// assert_eq!((apart?.lead.g, merged?.lead.g), (2, 1));
/// // No groups: nothing to put into blocks.
/// assert!(lower(&conv, ConvForm::BLOCK_DIAGONAL).is_err());
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvForm {
    /// Where samples are.
    pub batch: Samples,
    /// Where groups are.
    pub groups: GroupForm,
    /// What is padded with zeros.
    pub padding: Padding,
    /// How k runs over channels and taps.
    pub k: KOrder,
    /// Neighbouring columns of a gated product's gate, which come before as many of the other factor.
    pub granule: u64,
}

/// Where the samples of a convolution are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Samples {
    /// Batch entries, whose rows are the pixels of one sample: a strided-batched product whose filter has batch stride 0 (SOFIE).
    Apart,
    /// Rows, with the pixels of all samples (rocMLIR).
    Merged,
}

/// Where the groups of a convolution are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupForm {
    /// Batch entries: a product per group.
    Apart,
    /// Neighbours in one product whose filter is block-diagonal. A block has as many groups as fill a 128-byte row with their channels. Filter
    /// gradients store the diagonal blocks only.
    Blocks,
    /// Columns of one product, each with its own operand A: depthwise, channels-last. Neighbouring groups are contiguous, so a thread loads vectors of them.
    Columns,
}

/// What a form pads with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Nothing.
    None,
    /// The channels of each tap, to whole 128-byte rows; few channels of one group to a power of two. So neither a tile row nor a vector spans
    /// two taps. Padding of filter gradients is not stored.
    Channels,
    /// The pixel planes of a 1x1 filter gradient in NCHW, to whole 128-byte rows, so that no row spans two samples.
    Planes,
}

/// How k runs over channels and taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KOrder {
    /// As they lie in memory.
    InMemory,
    /// Taps before channels, where channels are planes (NCHW): the order of tensors that are copied to channels-last order first.
    TapsFirst,
}

/// Bytes of channels that groups of one product have together at most.
const ROW_BYTES: u64 = 128;
/// Bytes of the widest vector, at multiples of which copies of boxes have their lines start, too.
const VECTOR_BYTES: u64 = 16;

impl ConvForm {
    /// `BIM0`, which every problem has.
    pub const PER_SAMPLE: ConvForm =
        ConvForm { batch: Samples::Apart, groups: GroupForm::Apart, padding: Padding::None, k: KOrder::InMemory, granule: 1 };
    /// `BIM1`: the pixels of all samples are rows.
    pub const MERGED: ConvForm = ConvForm { batch: Samples::Merged, ..ConvForm::PER_SAMPLE };
    /// `BIM2`: with blocks of groups.
    pub const BLOCK_DIAGONAL: ConvForm = ConvForm { groups: GroupForm::Blocks, ..ConvForm::MERGED };
    /// `BIM4`: groups are columns.
    pub const GROUP_COLUMNS: ConvForm = ConvForm { groups: GroupForm::Columns, ..ConvForm::MERGED };

    /// The combinations that a problem has, by number; the first is every problem's.
    pub fn of(problem: &Problem) -> Vec<ConvForm> {
        match problem {
            Problem::Conv(conv) => ConvForm::of_conv(conv).collect(),
            Problem::Gemm(gemm) => gemm.granules().map(|granule| ConvForm { granule, ..ConvForm::PER_SAMPLE }).collect(),
            Problem::Reduce(_) => vec![ConvForm::PER_SAMPLE],
        }
    }
    fn of_conv(conv: &Conv) -> impl Iterator<Item = ConvForm> {
        let merges = conv.direction != Direction::BackwardWeight && conv.merges();
        let named = [
            Some(ConvForm::PER_SAMPLE),
            merges.then_some(ConvForm::MERGED),
            (together(conv) > 1).then_some(ConvForm::BLOCK_DIAGONAL),
            ConvForm::padded(conv),
            columns(conv).then_some(ConvForm::GROUP_COLUMNS),
        ];
        named.into_iter().flatten()
    }
    /// The combination's number, the value of `BIM`.
    pub fn number(self) -> u32 {
        match self {
            _ if self.granule > 1 => GRANULES.iter().position(|granule| *granule == self.granule).unwrap_or(0) as u32,
            ConvForm { groups: GroupForm::Columns, .. } => 4,
            ConvForm { padding: Padding::Channels | Padding::Planes, .. } | ConvForm { k: KOrder::TapsFirst, .. } => 3,
            ConvForm { groups: GroupForm::Blocks, .. } => 2,
            ConvForm { batch: Samples::Merged, .. } => 1,
            ConvForm { batch: Samples::Apart, .. } => 0,
        }
    }
    /// `BIM3`: the combination of it that a convolution has. Blocks have several groups where these fill a row. In NCHW planes of results stay
    /// apart: those of a sample are rows of one matrix.
    fn padded(conv: &Conv) -> Option<ConvForm> {
        let groups = if together(conv) > 1 { GroupForm::Blocks } else { GroupForm::Apart };
        let padding = if added_channels(conv) > 0 { Padding::Channels } else { Padding::None };
        match (conv.layout, padding) {
            (Layout::Nchw, _) if added_pixels(conv) > 0 => {
                Some(ConvForm { groups, padding: Padding::Planes, ..ConvForm::PER_SAMPLE })
            }
            (Layout::Nchw, _) => {
                pads_taps(conv).then_some(ConvForm { groups, padding, k: KOrder::TapsFirst, ..ConvForm::PER_SAMPLE })
            }
            (Layout::Nhwc, Padding::Channels) => Some(ConvForm { groups, padding, ..ConvForm::MERGED }),
            (Layout::Nhwc, _) => None,
        }
    }
    /// Refuses combinations that the convolution does not have. All samples may be rows wherever nothing is reduced per sample.
    pub(super) fn check(self, conv: &Conv) -> Result<(), ProblemError> {
        if self == ConvForm::MERGED || ConvForm::of_conv(conv).any(|form| form == self) {
            return Ok(());
        }
        Err(ProblemError::Unsupported {
            what: format!("the form {self:?} of this convolution"),
            remedy: "use a form that ConvForm::of lists, such as ConvForm::PER_SAMPLE".into(),
        })
    }
}

/// Groups that a block-diagonal product takes together; 1: every group has a row of channels of its own.
pub(super) fn together(conv: &Conv) -> u64 {
    // Reductions keep groups apart, which are batch entries to them.
    if conv.reduces_result() {
        return 1;
    }
    let channels = conv.c_per_group().max(conv.k_per_group()) * u64::from(conv.dtype.bytes());
    let fit = |count: &u64| conv.groups.is_multiple_of(*count) && count * channels <= ROW_BYTES;
    (1..=ROW_BYTES).rev().find(fit).unwrap_or(1)
}

/// Whether the channels under the taps may be padded, or follow the taps where they are planes.
fn pads_taps(conv: &Conv) -> bool {
    let taps: u64 = conv.filter.iter().product();
    taps > 1
        && match conv.direction {
            // Columns of a result that do not exist would take part in reductions.
            Direction::BackwardWeight => !conv.reduces_result(),
            Direction::Forward | Direction::BackwardData => conv.layout == Layout::Nchw || conv.merges(),
        }
}

/// Channels that [`Padding::Channels`] adds under each tap.
pub(super) fn added_channels(conv: &Conv) -> u64 {
    if !pads_taps(conv) {
        return 0;
    }
    let together = together(conv);
    let channels = together * if conv.direction == Direction::BackwardData { conv.k_per_group() } else { conv.c_per_group() };
    let row = ROW_BYTES / u64::from(conv.dtype.bytes());
    let whole = together > 1 || channels > row / 2;
    (if whole { channels.next_multiple_of(row) } else { channels.next_power_of_two() }) - channels
}

/// Pixels that [`Padding::Planes`] adds after each plane of a filter gradient's sum. The planes are those of NCHW that windows of
/// one tap leave as they are. Vectors of these planes start at multiples of 16 bytes, but rows of 128 bytes would span samples.
pub(super) fn added_pixels(conv: &Conv) -> u64 {
    let one_tap = conv.filter.iter().chain(&conv.stride).all(|x| *x == 1) && conv.input == conv.output();
    let (pixels, bytes) = (conv.input.iter().product::<u64>(), u64::from(conv.dtype.bytes()));
    let planes = conv.direction == Direction::BackwardWeight && conv.layout == Layout::Nchw && conv.n > 1;
    // Of smaller planes most would be zeros.
    let row = pixels * bytes > ROW_BYTES && (pixels * bytes).is_multiple_of(VECTOR_BYTES);
    if planes && one_tap && row { pixels.next_multiple_of(ROW_BYTES / bytes) - pixels } else { 0 }
}

/// Whether groups can be columns.
fn columns(conv: &Conv) -> bool {
    // Reductions keep groups apart, which are batch entries to them.
    let depthwise = conv.groups > 1 && conv.c_per_group() == 1 && conv.k_per_group() == 1;
    depthwise && conv.layout == Layout::Nhwc && !conv.reduces_result()
}
