//! Convolutions against cuDNN, and one launch against a loop over samples.

use super::{title, unless_fatal};
use crate::args::{Common, ConvArgs};
use crate::baseline::{self, Library};
use crate::compare::{Contender, compare};
use crate::error::BenchError;
use crate::ours::Ours;
use crate::record::Side;
use crate::session::{Session, constraint_of};
use crate::workload::Workload;
use tilewright_device::{Launch, Timing};
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Conv, Direction, Problem};

/// `conv`.
///
/// # Errors
/// Bad arguments, missing libraries, a lost device.
pub fn conv(common: Common, args: ConvArgs) -> Result<(), BenchError> {
    const EXPERIMENT: &str = "conv";
    let mut session = Session::begin(EXPERIMENT, common)?;
    let (how, constraint) = session.choose(&args.choice)?;
    let also = args.also.iter().map(|text| Ok((text, constraint_of("--also", text)?))).collect::<Result<Vec<_>, BenchError>>()?;
    let cases = session.cases(&args.cases)?;
    let device = session.device()?;
    let library = if args.no_cudnn { None } else { Some(baseline::open(Library::Cudnn, device.as_ref(), None)?) };
    let (limits, cache) = (session.limits(), session.cache());
    session.each(&cases, |case| {
        let Problem::Conv(conv) = &case.problem else {
            return Err(BenchError::Usage("this is no convolution: use the gemm command".into()));
        };
        let workload = Workload::new(&device, &case.problem, cache)?;
        let ours = unless_fatal(Ours::choose(&workload, &how, &constraint))?;
        let single = Conv { n: 1, ..conv.clone() }.into();
        // A filter gradient sums over the samples.
        let looped = if args.sample_loop && conv.n > 1 && conv.direction != Direction::BackwardWeight {
            // Its plan is chosen as ours is, on data of one sample.
            let one = Workload::new(&device, &single, cache)?;
            let chosen = unless_fatal(Ours::choose(&one, &how, &constraint))?;
            Some(chosen.and_then(|ours| SampleLoop::new(&workload, conv, ours)))
        } else {
            None
        };
        let mut others = Vec::new();
        for (name, constraint) in &also {
            others.push((name, unless_fatal(Ours::choose(&workload, &how, constraint))?));
        }
        // With others of ours beside it, the first is named by its constraint, too.
        let first = args.choice.plan.as_deref().filter(|_| !also.is_empty()).unwrap_or("tilewright");
        let mut contenders = vec![Contender::ours(&workload, ours.as_ref(), first)];
        contenders.extend(others.iter().map(|(name, ours)| Contender::ours(&workload, ours.as_ref(), name)));
        if let Some(library) = &library {
            contenders.push(Contender::library(&workload, library.as_ref())?);
        }
        match &looped {
            Some(Ok(looped)) => contenders.push(looped.contender(&workload)),
            Some(Err(e)) => contenders.push(Contender::failed(&workload, LOOP, e)),
            None => {}
        }
        Ok(vec![compare(&title(EXPERIMENT, case), contenders, &limits)?])
    })?;
    session.finish()
}

const LOOP: &str = "sample-loop";

/// One launch per sample, all in one sequence.
struct SampleLoop {
    launches: Vec<Launch>,
    side: Side,
    _ours: Ours,
}

impl SampleLoop {
    /// Binds a plan for one sample to each sample of a workload.
    fn new(workload: &Workload<'_>, conv: &Conv, single: Ours) -> Result<SampleLoop, BenchError> {
        let sample = [conv.operand(Operand::A).1 / conv.n, 0, conv.operand(Operand::C).1 / conv.n];
        let mut launches = Vec::new();
        for n in 0..conv.n {
            let mut buffers = workload.buffers(single.workspace());
            for (offset, stride) in buffers.offsets.iter_mut().zip(sample) {
                *offset += n * stride;
            }
            launches.extend(single.bind(&buffers, workload)?);
        }
        let note = format!("{} launches of the plan for one sample", launches.len());
        Ok(SampleLoop { launches, side: Side { note, ..single.side(LOOP) }, _ours: single })
    }

    fn contender<'a>(&'a self, workload: &'a Workload<'a>) -> Contender<'a> {
        let launches = &self.launches;
        Contender {
            side: self.side.clone(),
            check: Box::new(move || {
                workload.device().launch(launches)?;
                workload.device().sync()?;
                Ok(0.0)
            }),
            time: Box::new(move || {
                let times = workload.device().time(launches, &Timing { cache: workload.cache(), repeats: 1 })?;
                times.first().copied().ok_or_else(|| BenchError::Plan("the device gave no time".into()))
            }),
            workload,
            unsupported: false,
        }
    }
}
