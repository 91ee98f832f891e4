//! Copies into panels hold every element where it belongs and touch memory as they should.

use tilewright_emu::{ArgValue, Buffer, Counters, Options};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::program::Binding;
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Gemm, Order, Problem};

const ROWS: usize = 128;
const TILE: usize = 64;

/// Copies a factor of 128 rows that is contiguous along k into panels of 64 rows. Gives what the copy counts and the
/// alignment in bytes that the program asks of the original.
fn copied(k: usize) -> (Counters, u32) {
    let problem =
        Problem::Gemm(Gemm::new(Scalar::F32, ROWS as u64, 64, k as u64).order(Order::Col).trans(true, false).build().unwrap());
    let space = Space::new(&problem, &Target::by_arch("sm_90a").unwrap()).unwrap();
    let plan = Plan::default().but(|keys| {
        keys.a.source = 2;
        keys.threads = 64;
        keys.predicate = 1;
    });
    let resolved = space.resolve(&plan).unwrap();
    assert_eq!(resolved.spec.tiling.a.macro_tile as usize, TILE);
    let program = resolved.generate(space.env().workspace_bytes).unwrap();
    let launch = &program.launches[0];
    let kernel = &program.kernels[launch.kernel];
    assert_eq!(kernel.name, "tw_materialise_a");
    let values: Vec<u8> = (0..ROWS * k).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let (from, to) = (Buffer::from_bytes(&values), Buffer::new(values.len()));
    let buffer = |b: &Buffer| ArgValue::Buffer { buffer: b.clone(), offset: 0 };
    let args = [buffer(&from), ArgValue::I64(0), buffer(&to)];
    let options = Options { count: true, ..Options::default() };
    let counters = tilewright_emu::run(kernel, launch.grid, &args, &options).unwrap().counters;
    let copy: Vec<f32> = to.to_vec().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    for row in 0..ROWS {
        for at in 0..k {
            let place = (row / TILE * k + at) * TILE + row % TILE;
            assert_eq!(copy[place], (row * k + at) as f32, "row {row}, k {at}");
        }
    }
    let need = program.alignments.iter().find(|x| x.operand == Operand::A).unwrap().bytes;
    (counters, need)
}

#[test]
fn squares_are_turned_round_in_whole_vectors() {
    let k = 64;
    let (c, need) = copied(k);
    let sectors = (ROWS * k * 4 / 32) as u64;
    assert_eq!((c.global_load_sectors, c.global_store_sectors), (sectors, sectors));
    // 512 bytes per instruction of a wave; whole lines are written.
    let instructions = (ROWS * k * 4 / 512) as u64;
    assert_eq!((c.global_loads, c.global_stores, c.global_store_lines), (instructions, instructions, 4 * instructions));
    assert_eq!((c.shared_loads, c.shared_stores, need), (0, 0, 16));
}

#[test]
fn squares_are_narrower_where_vectors_are() {
    let k = 66;
    let (c, need) = copied(k);
    let sectors = (ROWS * k * 4 / 32) as u64;
    // Lines of the original start within sectors: those at the ends of squares are asked for twice.
    assert!(c.global_load_sectors < 2 * sectors && c.global_store_sectors == sectors, "{c:?}");
    assert_eq!((c.shared_loads, need), (0, 8));
}

#[test]
fn unaligned_tiles_are_turned_round_in_shared_memory_without_conflicts() {
    let (c, need) = copied(33);
    assert_eq!((c.bank_conflicts, need), (0, 4));
    assert!(c.shared_loads > 0 && c.shared_stores > 0);
}

/// Planes of 64 channels are copied as rows of channels: what the copy counts.
fn planes(height: usize, width: usize) -> Counters {
    let (samples, channels, pixels) = (2, 64, height * width);
    let text = format!("conv_fwd_nchw_n2_g1_c64_k64_in{height}x{width}_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1048576_f16");
    let space = Space::new(&Problem::parse(&text).unwrap(), &Target::by_arch("sm_90a").unwrap()).unwrap();
    let keys = Constraint::parse("A_MIC1_WOS3_ACP2__B_MIC8_ACP0__C_UNR64_MAC128_LWV4_UNI2_PFG2_BUF3_BIM3").unwrap();
    let resolved = space.resolve(&keys.apply(&Plan::default())).unwrap();
    let program = resolved.generate(space.env().workspace_bytes).unwrap();
    let launch = &program.launches[0];
    let kernel = &program.kernels[launch.kernel];
    assert_eq!(kernel.name, "tw_materialise_a");
    let values: Vec<u8> = (0..samples * channels * pixels).flat_map(|i| (i as u16).to_le_bytes()).collect();
    let (from, to) = (Buffer::from_bytes(&values), Buffer::new(values.len()));
    let buffer = |b: &Buffer| ArgValue::Buffer { buffer: b.clone(), offset: 0 };
    let args = [buffer(&from), ArgValue::I64(0), buffer(&to)];
    let options = Options { count: true, ..Options::default() };
    let counters = tilewright_emu::run(kernel, launch.grid, &args, &options).unwrap().counters;
    let copy: Vec<u16> = to.to_vec().chunks_exact(2).map(|b| u16::from_le_bytes(b.try_into().unwrap())).collect();
    for (at, value) in copy.iter().enumerate() {
        let (channel, pixel, sample) = (at % channels, at / channels % pixels, at / channels / pixels);
        assert_eq!(*value, ((sample * channels + channel) * pixels + pixel) as u16, "channel {channel}, pixel {pixel}");
    }
    counters
}

#[test]
fn planes_become_rows_of_channels_in_whole_sectors() {
    let c = planes(8, 12);
    let bytes = 2 * 64 * 96 * 2;
    assert_eq!((c.global_load_sectors, c.global_store_sectors, c.shared_stores), (bytes / 32, bytes / 32, 0));
    assert_eq!((c.global_loads, c.global_stores), (bytes / 512, bytes / 512));
    // Planes that vectors do not divide: by way of shared memory, rows of channels in whole sectors still.
    let c = planes(5, 7);
    let bytes = 2 * 64 * 35 * 2;
    assert!(c.global_store_sectors == bytes / 32 && c.global_load_sectors < 2 * bytes / 32 && c.shared_stores > 0, "{c:?}");
}

/// Copies both factors of a 16-bit product whose lines begin anywhere, in one launch, to padded lines; buffers end with the factors.
fn lines_of_words(m: usize, n: usize, k: usize, start: usize) -> Counters {
    let gemm = Gemm::new(Scalar::BF16, m as u64, n as u64, k as u64).order(Order::Col).trans(true, false).offsets(
        start as u64,
        start as u64,
        0,
    );
    let space = Space::new(&Problem::Gemm(gemm.build().unwrap()), &Target::by_arch("sm_90a").unwrap()).unwrap();
    let keys = Constraint::parse("A_MIC1_WOS1_ACP2__B_MIC8_WOS1_ACP2__C_UNR64_MAC128_SKW10_UNI2_PFG1_BUF2").unwrap();
    let plan = keys.apply(&Plan::default());
    let resolved = space.resolve(&plan).unwrap();
    let program = resolved.generate(space.env().workspace_bytes).unwrap();
    let launch = &program.launches[0];
    let kernel = &program.kernels[launch.kernel];
    assert_eq!(kernel.name, "tw_materialise_ab");
    assert!(program.bases.iter().all(|a| a.bytes == 16) && program.bases.len() == 2);
    let line = |rows: usize, i: usize| (i / k * rows + i % k) as u16;
    let buffers: Vec<Buffer> = [m, n]
        .iter()
        .map(|&rows| {
            let values: Vec<u8> = (0..start + rows * k)
                .flat_map(|i| i.checked_sub(start).map_or(0xffff, |i| line(rows, i)).to_le_bytes())
                .collect();
            Buffer::from_bytes(&values)
        })
        .collect();
    let workspace = Buffer::new(program.workspace_bytes as usize);
    let args: Vec<ArgValue> = launch
        .args
        .iter()
        .map(|binding| match binding {
            Binding::Buffer(x) => ArgValue::Buffer { buffer: buffers[*x as usize].clone(), offset: 0 },
            Binding::Workspace(at) => ArgValue::Buffer { buffer: workspace.clone(), offset: *at as usize },
            Binding::Offset(_) => ArgValue::I64(start as i64),
            other => panic!("{other:?}"),
        })
        .collect();
    let options = Options { count: true, ..Options::default() };
    let counters = tilewright_emu::run(kernel, launch.grid, &args, &options).unwrap().counters;
    let copy = workspace.to_vec();
    let element = |at: usize| u16::from_le_bytes([copy[2 * at], copy[2 * at + 1]]);
    let regions: Vec<usize> =
        launch.args.iter().filter_map(|b| if let Binding::Workspace(at) = b { Some(*at as usize / 2) } else { None }).collect();
    let ld = tilewright_gen::plan::copy_leading_dimension(k as u64, Scalar::BF16) as usize;
    for (rows, region) in [(m, regions[0]), (n, regions[2])] {
        for row in 0..rows {
            for at in 0..ld {
                let expected = if at < k { line(rows, row * k + at) } else { 0 };
                assert_eq!(element(region + row * ld + at), expected, "row {row}, k {at}");
            }
        }
    }
    counters
}

#[test]
fn lines_that_begin_anywhere_are_read_in_aligned_vectors() {
    for (m, n, k, start) in [(3, 5, 9, 0), (70, 9, 67, 0), (70, 9, 67, 3), (33, 40, 130, 7), (8, 24, 1027, 1), (2, 1, 16, 8)] {
        lines_of_words(m, n, k, start);
    }
    let c = lines_of_words(64, 64, 4095, 0);
    // Two vectors of each 16 bytes and eight elements at the end of each line; one by one it would be 16 times as many.
    let waves = (128 * 4095 / 8 / 32) as u64;
    assert!(c.global_loads < 3 * waves && c.global_stores < 3 * waves / 2, "{c:?} {waves}");
}
