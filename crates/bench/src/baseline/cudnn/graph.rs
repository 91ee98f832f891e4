//! cuDNN's graph interface (its "backend" calls): a graph of one convolution in any direction, type and layout, whose paddings at both
//! ends are free. Its heuristics offer engine configurations (an engine and its knobs); those within the workspace, and for exact f32
//! without tensor cores, become plans.

use super::{Buffers, Cudnn, Format, NAME, OK, Sizes, WORKSPACE, Ways, narrow};
use crate::error::BenchError;
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptor_t as Raw,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t as Mode, cudnnBackendNumericalNote_t as Numerics,
};
use std::ffi::{CStr, c_void};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tilewright_problem::Direction;

/// Plans at most.
const PLANS: usize = 96;
/// No plan is made after this: some engines compile kernels.
const PATIENCE: Duration = Duration::from_secs(5);
/// Knobs of an engine at most.
const KNOBS: usize = 48;
/// Heuristics. Each one adds the configurations that those before it did not offer.
const MODES: [Mode; 3] = [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_B, Mode::CUDNN_HEUR_MODE_FALLBACK];
/// What an engine that computes in f32 with FMA units does not do.
const INEXACT: [Numerics; 3] = [
    Numerics::CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
    Numerics::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
    Numerics::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
];
/// Names of the input, the filter and the output within the graph.
const IDS: [i64; 3] = [1, 2, 3];

/// A type of attributes' elements, laid out as cuDNN reads and writes it.
trait Element: Copy {
    const TYPE: Type;
}

/// An address on the device.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Address(usize);

/// A numerical note. A number, because libraries newer than the bindings may know more notes.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Note(u32);

/// A kind of knob. A number for the same reason.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Knob(u32);

impl Element for i64 {
    const TYPE: Type = Type::CUDNN_TYPE_INT64;
}
impl Element for f32 {
    const TYPE: Type = Type::CUDNN_TYPE_FLOAT;
}
impl Element for f64 {
    const TYPE: Type = Type::CUDNN_TYPE_DOUBLE;
}
impl Element for Address {
    const TYPE: Type = Type::CUDNN_TYPE_VOID_PTR;
}
impl Element for Note {
    const TYPE: Type = Type::CUDNN_TYPE_NUMERICAL_NOTE;
}
impl Element for Knob {
    const TYPE: Type = Type::CUDNN_TYPE_KNOB_TYPE;
}
impl Element for Raw {
    const TYPE: Type = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
}
impl Element for Mode {
    const TYPE: Type = Type::CUDNN_TYPE_HEUR_MODE;
}
impl Element for sys::cudnnHandle_t {
    const TYPE: Type = Type::CUDNN_TYPE_HANDLE;
}
impl Element for sys::cudnnDataType_t {
    const TYPE: Type = Type::CUDNN_TYPE_DATA_TYPE;
}
impl Element for sys::cudnnConvolutionMode_t {
    const TYPE: Type = Type::CUDNN_TYPE_CONVOLUTION_MODE;
}

/// A descriptor of the graph interface.
struct Descriptor {
    raw: Raw,
    kind: Kind,
}

impl Descriptor {
    fn new(kind: Kind) -> Result<Descriptor, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        let status = unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut raw) };
        judge("cudnnBackendCreateDescriptor", status, || format!("{kind:?}"))?;
        Ok(Descriptor { raw, kind })
    }
    /// Sets an attribute.
    fn with<T: Element>(self, name: Name, values: &[T]) -> Result<Descriptor, BenchError> {
        let data: *const c_void = values.as_ptr().cast();
        // SAFETY: the descriptor is alive; the array has as many elements of this type as is said, and is read during the call.
        let status = unsafe { sys::cudnnBackendSetAttribute(self.raw, name, T::TYPE, values.len() as i64, data) };
        judge("cudnnBackendSetAttribute", status, || format!("{:?}, {name:?}", self.kind))?;
        Ok(self)
    }
    fn finalize(self) -> Result<Descriptor, BenchError> {
        // SAFETY: the descriptor is alive.
        let status = unsafe { sys::cudnnBackendFinalize(self.raw) };
        judge("cudnnBackendFinalize", status, || format!("{:?}", self.kind))?;
        Ok(self)
    }
    /// Reads as many elements of an attribute as fit; how many it has.
    fn read<T: Element>(&self, name: Name, into: &mut [T]) -> Result<usize, BenchError> {
        let mut count = 0;
        let data = if into.is_empty() { std::ptr::null_mut() } else { into.as_mut_ptr().cast() };
        // SAFETY: the descriptor is alive; the array takes as many elements of this type as is said.
        let status = unsafe { sys::cudnnBackendGetAttribute(self.raw, name, T::TYPE, into.len() as i64, &mut count, data) };
        judge("cudnnBackendGetAttribute", status, || format!("{:?}, {name:?}", self.kind))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }
    /// A single number.
    fn number(&self, name: Name) -> Result<i64, BenchError> {
        let mut number = [0];
        self.read(name, &mut number)?;
        Ok(number[0])
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.raw) };
    }
}

/// The error of a call, with what it was about and what cuDNN says of it.
fn judge(call: &'static str, status: sys::cudnnStatus_t, about: impl Fn() -> String) -> Result<(), BenchError> {
    if status == OK {
        return Ok(());
    }
    let mut text = [0u8; 512];
    // SAFETY: the library is loaded. It writes at most as many bytes as is said. Versions before 9 lack the function.
    unsafe {
        if sys::cudnnGetVersion() >= 90_000 {
            sys::cudnnGetLastErrorString(text.as_mut_ptr().cast(), text.len());
        }
    }
    let said = CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy()).unwrap_or_default();
    let said = if said.is_empty() { String::new() } else { format!(" ({})", said.trim()) };
    Err(BenchError::Call { call, reason: format!("{}: {status:?}{said}", about()) })
}

/// A dense tensor at an address.
fn tensor(id: i64, extents: &[u64], address: usize, format: &Format) -> Result<Descriptor, BenchError> {
    let alignment = 16.min(1i64 << address.trailing_zeros().min(4));
    Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
        .with(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, &[format.data])?
        .with(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &narrow::<i64>(extents)?)?
        .with(Name::CUDNN_ATTR_TENSOR_STRIDES, &narrow::<i64>(&format.strides(extents))?)?
        .with(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[id])?
        .with(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[alignment])?
        .finalize()
}

/// The operation of a direction, and its attributes: input, filter, output (or their gradients), window, factors.
fn operation(direction: Direction) -> (Kind, [Name; 6]) {
    use Name::*;
    match direction {
        Direction::Forward => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
        ),
        Direction::BackwardData => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
        ),
        Direction::BackwardWeight => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
        ),
    }
}

/// A graph of one convolution, and what it consists of.
struct Graph {
    graph: Descriptor,
    /// Parts before those that they are made of.
    _parts: [Descriptor; 5],
}

impl Graph {
    fn new(library: &Cudnn, buffers: &Buffers, sizes: &Sizes, format: &Format) -> Result<Graph, BenchError> {
        let [x, w, y] = IDS;
        let input = tensor(x, &sizes.input(&sizes.input), buffers.input, format)?;
        let filter = tensor(w, &sizes.filter(), buffers.filter, format)?;
        let output = tensor(y, &sizes.output(), buffers.output, format)?;
        let window = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[sizes.input.len() as i64])?
            .with(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[format.accumulator])?
            .with(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, &[sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION])?
            .with(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &narrow::<i64>(&sizes.front)?)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &narrow::<i64>(&sizes.back())?)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &narrow::<i64>(&sizes.stride)?)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &narrow::<i64>(&sizes.dilation)?)?
            .finalize()?;
        // The number of groups follows from the channels of the input and the filter.
        let (kind, [x, w, y, conv, alpha, beta]) = operation(format.direction);
        let operation = Descriptor::new(kind)?
            .with(x, &[input.raw])?
            .with(w, &[filter.raw])?
            .with(y, &[output.raw])?
            .with(conv, &[window.raw])?;
        let operation = match format.is_double() {
            true => operation.with(alpha, &[1.0f64])?.with(beta, &[0.0f64])?,
            false => operation.with(alpha, &[1.0f32])?.with(beta, &[0.0f32])?,
        };
        let operation = operation.finalize()?;
        let graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &[operation.raw])?
            .with(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[library.handle])?
            .finalize()?;
        Ok(Graph { graph, _parts: [operation, window, input, filter, output] })
    }

    /// The engine configurations of one heuristic, best first.
    fn configs(&self, mode: Mode) -> Result<Vec<Descriptor>, BenchError> {
        let heuristic = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[self.graph.raw])?
            .with(Name::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?
            .finalize()?;
        let offered = heuristic.read::<Raw>(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, &mut [])?;
        let new = |_| Descriptor::new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        let mut configs: Vec<Descriptor> = (0..offered).map(new).collect::<Result<_, _>>()?;
        if configs.is_empty() {
            return Ok(configs);
        }
        // The call fills descriptors that exist.
        let mut raw: Vec<Raw> = configs.iter().map(|config| config.raw).collect();
        let filled = heuristic.read(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, &mut raw)?;
        configs.truncate(filled);
        Ok(configs)
    }
}

/// An engine configuration, told apart from others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    engine: i64,
    /// Kind and value of each; `None` where the library does not say.
    knobs: Option<Vec<(u32, i64)>>,
}

impl Identity {
    /// Of a configuration, with what it does to numbers.
    fn of(config: &Descriptor) -> Result<(Identity, Vec<Note>), BenchError> {
        let engine = Descriptor::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        config.read(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &mut [engine.raw])?;
        let number = engine.number(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?;
        let mut notes = vec![Note(0); Numerics::CUDNN_NUMERICAL_NOTE_TYPE_COUNT as usize];
        let count = engine.read(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, &mut notes)?;
        notes.truncate(count);
        Ok((Identity { engine: number, knobs: knobs(config).ok() }, notes))
    }
}

/// The knobs of an engine configuration, by kind.
fn knobs(config: &Descriptor) -> Result<Vec<(u32, i64)>, BenchError> {
    let name = Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES;
    let new = |_| Descriptor::new(Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    let choices: Vec<Descriptor> = (0..KNOBS).map(new).collect::<Result<_, _>>()?;
    let mut raw: Vec<Raw> = choices.iter().map(|choice| choice.raw).collect();
    let filled = config.read(name, &mut raw)?;
    let one = |choice: &Descriptor| {
        let mut kind = [Knob(0)];
        choice.read(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &mut kind)?;
        Ok((kind[0].0, choice.number(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)?))
    };
    let mut knobs: Vec<(u32, i64)> = choices.iter().take(filled).map(one).collect::<Result<_, BenchError>>()?;
    knobs.sort_unstable();
    Ok(knobs)
}

/// An engine configuration made ready for these buffers.
struct Plan {
    pack: Descriptor,
    plan: Descriptor,
    _config: Descriptor,
    identity: Identity,
    mode: Mode,
    workspace: u64,
}

impl Plan {
    /// A plan from a configuration; `None` if it needs too much workspace.
    fn new(identity: Identity, mode: Mode, config: Descriptor, buffers: &Buffers) -> Result<Option<Plan>, BenchError> {
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[config.raw])?
            .finalize()?;
        let workspace = u64::try_from(plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?).unwrap_or(0);
        if workspace > WORKSPACE {
            return Ok(None);
        }
        let addresses = [buffers.input, buffers.filter, buffers.output].map(Address);
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &IDS)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &addresses)?
            .with(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[Address(buffers.workspace)])?
            .finalize()?;
        Ok(Some(Plan { pack, plan, _config: config, identity, mode, workspace }))
    }
}

/// Plans, and what became of the engine configurations that are none.
#[derive(Default)]
struct Made {
    plans: Vec<Plan>,
    known: Vec<Identity>,
    inexact: usize,
    too_large: usize,
    failed: usize,
    why: String,
}

impl Made {
    /// Makes a plan of a configuration that is new. `exact`: none that computes less exactly than f32.
    fn add(&mut self, mode: Mode, config: Descriptor, buffers: &Buffers, exact: bool) -> Result<(), BenchError> {
        let (identity, notes) = Identity::of(&config)?;
        // Without its knobs a configuration cannot be told from others of its engine.
        if identity.knobs.is_some() && self.known.contains(&identity) {
            return Ok(());
        }
        self.known.push(identity.clone());
        if exact && INEXACT.iter().any(|inexact| notes.iter().any(|note| note.0 == *inexact as u32)) {
            self.inexact += 1;
            return Ok(());
        }
        match Plan::new(identity, mode, config, buffers)? {
            Some(plan) => self.plans.push(plan),
            None => self.too_large += 1,
        }
        Ok(())
    }
}

pub(super) struct Plans<'a> {
    library: &'a Cudnn,
    plans: Vec<Plan>,
    /// Configurations that became no plan, because there were enough plans or it took too long.
    left: usize,
    _graph: Graph,
    buffers: Rc<Buffers>,
}

impl<'a> Plans<'a> {
    /// The plans that the heuristics offer.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] with what became of the engine configurations where there is none; [`BenchError::Call`].
    pub(super) fn new(library: &'a Cudnn, buffers: Rc<Buffers>, sizes: &Sizes, format: &Format) -> Result<Self, BenchError> {
        let graph = Graph::new(library, &buffers, sizes, format)?;
        let (mut made, start, mut left) = (Made::default(), Instant::now(), 0);
        for mode in MODES {
            let configs = graph.configs(mode).unwrap_or_else(|e| {
                made.why = e.to_string();
                Vec::new()
            });
            for config in configs {
                if made.plans.len() >= PLANS || start.elapsed() >= PATIENCE {
                    left += 1;
                    continue;
                }
                if let Err(e) = made.add(mode, config, &buffers, format.exact()) {
                    made.failed += 1;
                    made.why = e.to_string();
                }
            }
        }
        if made.plans.is_empty() {
            let Made { known, inexact, too_large, failed, why, .. } = made;
            let last = if why.is_empty() { String::new() } else { format!("; the last failure: {why}") };
            return Err(BenchError::Unsupported {
                library: NAME,
                reason: format!(
                    "its graph interface offers no plan: of {} engine configurations {inexact} compute less exactly than f32, {too_large} \
                     need more than {} MiB of workspace, {failed} fail{last}",
                    known.len(),
                    WORKSPACE >> 20
                ),
            });
        }
        Ok(Plans { library, plans: made.plans, left, _graph: graph, buffers })
    }
}

impl Ways for Plans<'_> {
    fn count(&self) -> usize {
        self.plans.len()
    }
    fn run(&self, number: usize) -> Result<(), BenchError> {
        let Some(plan) = self.plans.get(number) else {
            return Err(BenchError::Call { call: "cudnnBackendExecute", reason: format!("no plan {number}") });
        };
        // SAFETY: plan and pack are finalized. The pack's addresses are those of buffers as large as the graph's tensors, and of
        // a workspace at least as large as the plan needs.
        let status = unsafe { sys::cudnnBackendExecute(self.library.handle, plan.plan.raw, plan.pack.raw) };
        judge("cudnnBackendExecute", status, || format!("engine {}", plan.identity.engine))?;
        self.buffers.add_bias(self.library.handle)
    }
    fn describe(&self, number: usize) -> Option<String> {
        let Plan { identity: Identity { engine, knobs }, mode, .. } = self.plans.get(number)?;
        let mode = format!("{mode:?}").replace("CUDNN_HEUR_MODE_", "").to_lowercase();
        let knobs: String = knobs.iter().flatten().map(|(kind, value)| format!(" k{kind}={value}")).collect();
        let left = if self.left > 0 { format!(", {} configurations not tried", self.left) } else { String::new() };
        Some(format!("graph, engine {engine}{knobs} (heuristic {mode}{left})"))
    }
    fn workspace(&self, number: usize) -> Option<u64> {
        Some(self.plans.get(number)?.workspace)
    }
}
