//! Case files that nobody tuned to: problems of the kinds of benchmarks/cases, drawn by a seed. Constants that were fitted to the published
//! sets are judged on these. The seed is the first eight digits of a commit, so nobody chooses the problems.

use rand::SeedableRng as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::str::FromStr;

/// The first eight hexadecimal digits of a commit.
#[derive(Clone, Copy, Debug)]
pub struct Seed(u32);

impl FromStr for Seed {
    type Err = String;
    fn from_str(text: &str) -> Result<Seed, String> {
        let digits = text.get(..8).ok_or("a seed is the first eight hexadecimal digits of a commit")?;
        u32::from_str_radix(digits, 16).map(Seed).map_err(|e| format!("the seed `{text}` is not hexadecimal: {e}"))
    }
}

/// Draws extents.
struct Draw(ChaCha8Rng);

impl Draw {
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.0).expect("a list of choices")
    }
    /// A multiple of `step` between two bounds, each octave as likely as the others.
    fn multiple(&mut self, step: u64, least: u64, most: u64) -> u64 {
        let [least_log, most_log] = [least, most].map(|bound| (bound as f64).log2());
        let share = f64::from(rand::Rng::random::<f32>(&mut self.0));
        let extent = (least_log + share * (most_log - least_log)).exp2();
        ((extent / step as f64).round() as u64 * step).clamp(least.next_multiple_of(step), most / step * step)
    }
}

/// A product of a case file.
struct Product {
    set: &'static str,
    dtype: &'static str,
    trans: [u8; 2],
    batch: u64,
    extents: [u64; 3],
}

impl Product {
    fn line(&self) -> String {
        let ([a, b], [m, n, k]) = (self.trans, self.extents);
        format!("{},{},{a},{b},{},{m},{n},{k},each", self.set, self.dtype, self.batch)
    }
}

/// Sets of products, as benchmarks/cases/gemm.csv has them.
const PRODUCTS: [&str; 6] = ["llm", "square", "wgrad", "unaligned", "batched", "f32"];

fn product(set: &'static str, draw: &mut Draw) -> Product {
    let of = |dtype, trans, batch, extents| Product { set, dtype, trans, batch, extents };
    match set {
        "llm" => {
            let rows = [1, 8, 16, 48, 96, 160, 320, 768, 1536, 3072, 6144];
            let extents = [draw.one(&rows), draw.multiple(256, 1024, 32768), draw.multiple(256, 1024, 16384)];
            of("bf16", [0, 1], 1, extents)
        }
        "square" => {
            let extent = draw.multiple(8, 512, 8192);
            of(draw.one(&["bf16", "f16"]), [draw.one(&[0, 1]), draw.one(&[0, 1])], 1, [extent; 3])
        }
        "wgrad" => {
            let extents = [draw.multiple(64, 256, 8192), draw.multiple(64, 256, 8192), draw.multiple(64, 8192, 131_072)];
            of("bf16", [1, 0], 1, extents)
        }
        "unaligned" => {
            let extents = [0; 3].map(|_: u64| draw.multiple(2, 64, 8192) + 1);
            of("bf16", [draw.one(&[0, 1]), draw.one(&[0, 1])], 1, extents)
        }
        "batched" => {
            let extents = [0; 3].map(|_: u64| draw.multiple(16, 32, 1024));
            of(draw.one(&["bf16", "f32"]), [0, draw.one(&[0, 1])], draw.multiple(1, 8, 512), extents)
        }
        _ => {
            let extents = [0; 3].map(|_: u64| draw.multiple(4, 128, 8192));
            of("f32", [draw.one(&[0, 1]), draw.one(&[0, 1])], 1, extents)
        }
    }
}

fn products(count: usize, draw: &mut Draw) -> String {
    let mut text = "set,dtype,trans_a,trans_b,batch,m,n,k,b_operand\n".to_string();
    for set in PRODUCTS {
        for _ in 0..count {
            text += &(product(set, draw).line() + "\n");
        }
    }
    text
}

/// A convolution of a case file, all extents of images and filters square.
struct Convolution {
    set: &'static str,
    n: u64,
    groups: u64,
    k: u64,
    c: u64,
    filter: u64,
    image: u64,
    stride: u64,
}

impl Convolution {
    fn line(&self) -> String {
        let Convolution { set, n, groups, k, c, filter, image, stride } = self;
        format!("{set},{n},{groups},{k},{c},{filter},{filter},{image},{image},{stride},{},1", filter / 2)
    }
}

/// Sets of convolutions.
const CONVOLUTIONS: [&str; 4] = ["dense", "pointwise", "grouped", "depthwise"];

fn convolution(set: &'static str, draw: &mut Draw) -> Convolution {
    let image = draw.multiple(1, 7, 200);
    // Large images have few channels, as in networks.
    let most = (65_536 / image).clamp(64, 2048);
    let [k, c] = [0; 2].map(|_: u64| draw.multiple(16, 16, most));
    let n = draw.one(&[1, 8, 16, 32, 64]);
    let stride = draw.one(&[1, 1, 1, 2]);
    match set {
        "dense" => Convolution { set, n, groups: 1, k, c, filter: draw.one(&[3, 3, 3, 5, 7]), image, stride },
        "pointwise" => Convolution { set, n, groups: 1, k, c, filter: 1, image, stride },
        "grouped" => {
            let (groups, channels) = (draw.one(&[2, 4, 8, 16, 32]), draw.one(&[4, 8, 16, 32]));
            Convolution { set, n, groups, k: groups * channels, c: groups * channels, filter: 3, image, stride }
        }
        _ => Convolution { set, n, groups: c, k: c, c, filter: draw.one(&[3, 5, 7]), image, stride },
    }
}

fn convolutions(count: usize, draw: &mut Draw) -> String {
    let mut text = "set,n,groups,k,c,r,s,h,w,stride,pad,dilation\n".to_string();
    for set in CONVOLUTIONS {
        for _ in 0..count {
            text += &(convolution(set, draw).line() + "\n");
        }
    }
    text
}

/// A dimension of a convolution whose sizes fit no vector.
struct Axis {
    image: u64,
    filter: u64,
    stride: u64,
    dilation: u64,
    pad: [u64; 2],
}

impl Axis {
    /// The window fits into every image without padding.
    fn draw(draw: &mut Draw) -> Axis {
        let filter = draw.one(&[1, 2, 3, 3, 4, 5, 7]);
        let pads: Vec<u64> = (0..filter).collect();
        let [stride, dilation] = [draw.one(&[1, 1, 2, 3]), draw.one(&[1, 1, 2])];
        let pad = [draw.one(&pads), draw.one(&pads)];
        Axis { image: 2 * draw.multiple(1, 7, 56) + 1, filter, stride, dilation, pad }
    }
    fn outputs(&self) -> u64 {
        (self.image + self.pad[0] + self.pad[1] - self.dilation * (self.filter - 1) - 1) / self.stride + 1
    }
}

/// Multiply-adds of an odd convolution at most: some seconds of search on a processor find a plan.
const WORK: u64 = 1 << 28;

/// A convolution in f32 and NCHW. It has planes of an odd number of pixels, channels that fit no vector, groups, and both ends
/// padded by their own numbers.
fn odd(draw: &mut Draw) -> String {
    loop {
        let direction = draw.one(&["forward", "backward-data", "backward-weight"]);
        let (n, groups) = (draw.one(&[1, 3, 5, 8]), draw.one(&[1, 1, 2, 3, 5, 24]));
        let [k, c] = [0; 2].map(|_: u64| draw.one(&[1, 3, 5, 6, 7, 11, 17, 33]));
        let axes = [0; 2].map(|_: u64| Axis::draw(draw));
        let of = |number: fn(&Axis) -> u64| format!("{}x{}", number(&axes[0]), number(&axes[1]));
        let work: u64 = axes.iter().map(|axis| axis.outputs() * axis.filter).product();
        if axes.iter().all(|axis| axis.pad[0] == axis.pad[1]) || work * n * groups * k * c > WORK {
            continue;
        }
        let (steps, dilation) = (of(|axis| axis.stride), of(|axis| axis.dilation));
        let pads = [of(|axis| axis.pad[0]), of(|axis| axis.pad[1])].join(",");
        let sizes = [of(|axis| axis.filter), of(|axis| axis.image)].join(",");
        return format!("odd,f32,nchw,{direction},2,{groups},{n},{k},{c},{sizes},{steps},{pads},{dilation}");
    }
}

fn odd_convolutions(count: usize, draw: &mut Draw) -> String {
    let columns =
        "set,dtype,layout,direction,dims,groups,n,k_per_group,c_per_group,filter,input,stride,pad_begin,pad_end,dilation";
    (0..count).fold(format!("{columns}\n"), |text, _| text + &odd(draw) + "\n")
}

/// Writes `gemm.csv` and `conv.csv` with so many cases of each set, and `odd.csv` with so many.
pub fn write(seed: Seed, count: usize, folder: &Path) -> Result<(), String> {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(u64::from(seed.0)));
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let products = products(count, &mut draw);
    let convolutions = convolutions(count, &mut draw);
    for (name, text) in [("gemm.csv", products), ("conv.csv", convolutions), ("odd.csv", odd_convolutions(count, &mut draw))] {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_problem::cases::{CaseOptions, read};
    use tilewright_problem::{Conv, Direction, Layout, Problem};

    #[test]
    fn a_seed_draws_the_same_legal_problems_each_time() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for place in [&folder, &other] {
            write("68d28aec1".parse().unwrap(), 12, place.path()).unwrap();
        }
        for (name, sets) in [("gemm.csv", PRODUCTS.len()), ("conv.csv", CONVOLUTIONS.len()), ("odd.csv", 1)] {
            let text = |place: &tempfile::TempDir| std::fs::read_to_string(place.path().join(name)).unwrap();
            assert_eq!(text(&folder), text(&other));
            let options =
                CaseOptions { layout: Some(Layout::Nhwc), direction: Some(Direction::Forward), ..CaseOptions::default() };
            let file = read(&folder.path().join(name), &options).unwrap();
            assert_eq!((file.cases.len(), file.skipped.len()), (12 * sets, 0), "{name}");
        }
        write("00000002".parse().unwrap(), 12, other.path()).unwrap();
        let products = |place: &tempfile::TempDir| std::fs::read_to_string(place.path().join("gemm.csv")).unwrap();
        assert_ne!(products(&folder), products(&other));
    }

    /// benchmarks/cases/odd.csv is drawn: `cargo xtask cases 85bad626 FOLDER --count 60`.
    #[test]
    fn the_list_of_odd_convolutions_is_the_one_of_its_seed() {
        let folder = tempfile::tempdir().unwrap();
        write("85bad626".parse().unwrap(), 60, folder.path()).unwrap();
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/cases/odd.csv");
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(text(&kept), text(&folder.path().join("odd.csv")));
        let file = read(&kept, &CaseOptions::default()).unwrap();
        let convolutions: Vec<Conv> = file.cases.iter().map(|case| case.problem.clone()).filter_map(conv).collect();
        assert_eq!((convolutions.len(), file.skipped.len()), (60, 0));
        let all = |is: fn(&Conv) -> bool| convolutions.iter().all(is);
        assert!(all(|conv| conv.layout == Layout::Nchw
            && conv.input.iter().product::<u64>() % 2 == 1
            && conv.pad_begin != conv.pad_end));
        let some = |is: fn(&Conv) -> bool| convolutions.iter().filter(|conv| is(conv)).count() > 5;
        assert!(
            some(|conv| conv.groups > 1) && some(|conv| conv.stride[0] != conv.stride[1]) && some(|conv| conv.dilation != [1, 1])
        );
        for direction in [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight] {
            assert!(convolutions.iter().filter(|conv| conv.direction == direction).count() > 9, "{direction:?}");
        }
    }

    fn conv(problem: Problem) -> Option<Conv> {
        if let Problem::Conv(conv) = problem { Some(conv) } else { None }
    }

    #[test]
    fn a_seed_is_eight_hexadecimal_digits() {
        assert!("68d28ae".parse::<Seed>().unwrap_err().contains("first eight"));
        assert!("68d28aeg".parse::<Seed>().unwrap_err().contains("hexadecimal"));
    }
}
