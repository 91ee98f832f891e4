//! Results of convolutions of more than 2^31 elements, 4.3 GB, in each direction: some of the work-groups run, and what they wrote is where it
//! must be, nothing else is. The emulator's memory takes only what is touched.

use rayon::prelude::*;
use std::sync::Arc;
use tilewright_check::random::whole_run;
use tilewright_check::run::{Buffers, Factors, bind, compile};
use tilewright_device::{Buffer, Device, Options, open_with};
use tilewright_gen::plan::Constraint;
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Conv, Direction, Layout, Problem};
use tilewright_tune::search::pick;

/// Of so many work-groups one runs.
const EVERY: u64 = 19997;
/// Bytes of the result that are looked at together.
const CHUNK: u64 = 1 << 16;

/// A small whole number greater than 0 for an element of a tensor of so many channels, different for neighbours of each kind.
fn value(tensor: u64, pixel: u64, channel: u64) -> i64 {
    ((pixel * 5 + pixel / 7 + channel * 3 + channel / 11 + channel / 4096 + tensor) % 3) as i64 + 1
}

/// A tensor of so many pixels and channels.
fn tensor(device: &dyn Device, number: u64, pixels: u64, channels: u64) -> Buffer {
    let values = (0..pixels).flat_map(|pixel| (0..channels).map(move |channel| value(number, pixel, channel)));
    let bytes: Vec<u8> = values.flat_map(|x| half::f16::from_f32(x as f32).to_le_bytes()).collect();
    let memory = device.alloc(bytes.len() as u64).expect("memory");
    device.write(&memory, 0, &bytes).expect("it is written");
    memory
}

/// A convolution of images by 3 x 3 taps around each pixel. Tensors: 0 is the input, 1 the output, 2 the filter, whose pixels are its taps
/// of each output channel.
struct Large(Conv);

impl Large {
    fn new(direction: Direction, (n, side): (u64, u64), [c, k]: [u64; 2], stride: u64) -> Large {
        let conv = Conv::new(Scalar::F16, n, c, k, &[side; 2], &[3; 2]).layout(Layout::Nhwc).stride(&[stride; 2]);
        Large(conv.pad(&[1; 2], &[1; 2]).direction(direction).workspace(0).build().expect("a problem"))
    }

    /// Pixels and channels of a tensor.
    fn shape(&self, tensor: u64) -> [u64; 2] {
        let conv = &self.0;
        match tensor {
            0 => [conv.n * conv.input[0].pow(2), conv.c],
            1 => [conv.n * conv.output()[0].pow(2), conv.k],
            _ => [conv.k * 9, conv.c],
        }
    }

    /// Pairs of an input and an output pixel with the tap between them that an element sums over; of the filter's gradient all of its tap.
    fn terms(&self, tensor: u64, pixel: u64) -> Vec<[u64; 3]> {
        let (conv, [side, out]) = (&self.0, [self.0.input[0], self.0.output()[0]]);
        let along = |outer: u64, tap: u64| {
            let at = outer * conv.stride[0] + tap;
            (1..=side).contains(&at).then(|| at - 1)
        };
        let of = |sample: u64, [p, q]: [u64; 2], [r, s]: [u64; 2]| {
            let (y, x) = (along(p, r)?, along(q, s)?);
            Some([(sample * side + y) * side + x, (sample * out + p) * out + q, r * 3 + s])
        };
        let taps = (0..3).flat_map(|r| (0..3).map(move |s| [r, s]));
        let outputs = |sample: u64| (0..out * out).map(move |at| (sample, [at / out, at % out]));
        match tensor {
            0 => {
                let sample = pixel / (side * side);
                let all = taps.flat_map(|tap| outputs(sample).map(move |(sample, at)| (sample, at, tap)));
                all.filter_map(|(sample, at, tap)| of(sample, at, tap)).filter(|pair| pair[0] == pixel).collect()
            }
            1 => taps.filter_map(|tap| of(pixel / (out * out), [pixel / out % out, pixel % out], tap)).collect(),
            _ => {
                let tap = [pixel % 9 / 3, pixel % 3];
                (0..conv.n).flat_map(outputs).filter_map(|(sample, at)| of(sample, at, tap)).collect()
            }
        }
    }

    /// An element of the result.
    fn expected(&self, result: u64, terms: &[[u64; 3]], pixel: u64, channel: u64) -> i64 {
        let (c, k) = (self.0.c, self.0.k);
        let sum = terms.iter().map(|[input, output, tap]| match result {
            0 => (0..k).map(|o| value(1, *output, o) * value(2, o * 9 + tap, channel)).sum::<i64>(),
            1 => (0..c).map(|i| value(0, *input, i) * value(2, channel * 9 + tap, i)).sum(),
            _ => value(0, *input, channel) * value(1, *output, pixel / 9),
        });
        sum.sum()
    }

    fn runs(&self, arch: &str, constraint: &str) {
        let conv = &self.0;
        let mut options = Options::default();
        options.emulator.every = EVERY;
        let device: Arc<dyn Device> = open_with(&format!("emu:{arch}"), &options).expect("the emulator opens");
        let problem = Problem::Conv(conv.clone());
        let space = Space::new(&problem, &device.info().target).expect("a space");
        let space = space.constrained(&Constraint::parse(constraint).expect("a constraint"));
        let plan = pick(&*device, &space).expect("a plan");
        let found = space.resolve(&plan).expect("it is legal");
        let program = found.generate(0).expect("it generates");
        let compiled = compile(&*device, &program).expect("it compiles");
        let [a, b, result] = match conv.direction {
            Direction::Forward => [0, 2, 1],
            Direction::BackwardData => [1, 2, 0],
            Direction::BackwardWeight => [1, 0, 2],
        };
        let [pixels, channels] = self.shape(result);
        assert!(pixels * channels > 1 << 31, "{problem}");
        let of = |number: u64| tensor(&*device, number, self.shape(number)[0], self.shape(number)[1]);
        let c = device.alloc(2 * pixels * channels).expect("memory that nobody touches");
        let buffers = Buffers {
            a: of(a),
            b: of(b),
            c,
            added: Default::default(),
            reductions: Vec::new(),
            workspace: None,
            offsets: [0; 3],
        };
        let at = found.contraction.extents();
        let launches = bind(&program, &compiled, found.contraction, &buffers, Factors::default(), &at).expect("it binds");
        device.launch(&launches).unwrap_or_else(|e| panic!("{arch} {plan}: {e}"));
        // What nobody has written is NaN.
        let written = (0..(2 * pixels * channels).div_ceil(CHUNK)).into_par_iter().map(|chunk| {
            let mut bytes = vec![0; CHUNK.min(2 * pixels * channels - chunk * CHUNK) as usize];
            device.read(&buffers.c, chunk * CHUNK, &mut bytes).expect("the result is read");
            if bytes.iter().all(|byte| *byte == 0xFF) {
                return 0;
            }
            let (mut last, mut terms) = (u64::MAX, Vec::new());
            let mut written = 0;
            for (i, element) in bytes.chunks_exact(2).enumerate().filter(|(_, element)| *element != [0xFF; 2]) {
                let place = chunk * CHUNK / 2 + i as u64;
                let (pixel, channel) = (place / channels, place % channels);
                if pixel != last {
                    (last, terms) = (pixel, self.terms(result, pixel));
                }
                let have = half::f16::from_le_bytes([element[0], element[1]]).to_f32() as i64;
                let want = self.expected(result, &terms, pixel, channel);
                assert_eq!(have, want, "{arch} {plan}: pixel {pixel}, channel {channel}");
                written += 1;
            }
            written
        });
        let sampled: u64 = launches
            .iter()
            .map(|launch| {
                let clusters =
                    launch.grid.iter().map(|g| u64::from(*g)).product::<u64>() / u64::from(found.spec.tiling.cluster.size());
                ((clusters - 1).div_ceil(EVERY) + 1) * u64::from(found.spec.tiling.cluster.size())
            })
            .sum();
        let (rows, columns) = found.spec.tiling.macro_tile();
        // Tiles at the edges are smaller.
        let (written, tiles) = (written.sum::<u64>(), sampled * u64::from(rows) * u64::from(columns));
        assert!((tiles * 3 / 4..=tiles).contains(&written), "{arch} {plan}: {written} of {tiles}");
    }
}

#[test]
fn results_of_more_than_two_to_the_31_elements() {
    let forward = Large::new(Direction::Forward, (144, 16), [16, 59904], 1);
    let data = Large::new(Direction::BackwardData, (144, 16), [59904, 16], 2);
    let weight = Large::new(Direction::BackwardWeight, (2, 4), [18432, 13824], 1);
    let of = |unit: &str| format!("{unit}_ICE1_PST0");
    let cases = [
        (&forward, "sm_90a", "C_UNI2"),
        (&forward, "gfx942", "C_UNI3"),
        (&data, "sm_90a", "C_UNI2"),
        (&data, "sm_80", "C_UNI1"),
        (&weight, "sm_90a", "C_UNI2"),
        (&weight, "sm_80", "C_UNI0"),
    ];
    // Outside of a whole run, each direction once, on a unit of its own.
    for (_, (large, arch, unit)) in cases.into_iter().enumerate().filter(|(case, _)| whole_run() || [0, 3, 5].contains(case)) {
        large.runs(arch, &of(unit));
    }
}
