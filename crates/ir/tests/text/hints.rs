//! Scheduling hints and early launches in printed source: each target's spelling, and none where there is none.

use tilewright_ir::*;

fn kernel(size: u32) -> Kernel {
    let mut b = Builder::new("hinted", 64);
    let (from, to) = (b.buffer("from", Scalar::F32, Access::Read, "read"), b.buffer("to", Scalar::F32, Access::Write, "written"));
    let tid = b.builtin(Builtin::LocalId);
    let value = b.load("value", Base::Buffer(from), tid, 1, None);
    b.push(Stmt::SchedHint { mask: if size == 0 { 0 } else { 0x20 }, size });
    b.store(Base::Buffer(to), tid, value, None);
    b.finish()
}

fn text(size: u32, target: &Target) -> String {
    print(&kernel(size), target).expect("it prints").text
}

#[test]
fn each_target_spells_what_it_has() {
    let cuda = Target::by_arch("sm_90a").expect("known");
    let hip = Target::by_arch("gfx942").expect("known");
    let opencl = Target { dialect: Dialect::OpenCl, ..hip.clone() };
    assert!(text(0, &hip).contains("__builtin_amdgcn_sched_barrier(0x0);"));
    assert!(text(2, &hip).contains("__builtin_amdgcn_sched_group_barrier(0x20, 2, 0);"));
    // A fence holds back only loads that may not be read-only.
    let fenced = text(0, &cuda);
    assert!(fenced.contains("__syncwarp();") && !fenced.contains("__restrict__"));
    let free = text(2, &cuda);
    assert!(!free.contains("__syncwarp") && free.contains("__restrict__"));
    let fenced = text(0, &opencl);
    assert!(
        fenced.contains("#if __has_builtin(__builtin_amdgcn_sched_barrier)") && fenced.contains("    tw_sched_barrier(0x0);")
    );
    assert!(fenced.contains("restrict"));
    assert!(!text(2, &opencl).contains("sched"));
}

/// Shared memory is set up before the wait, global memory is reached behind it.
#[test]
fn a_kernel_that_begins_early_waits_before_it_reaches_global_memory() {
    let mut b = Builder::new("early", 64);
    let (from, to) = (b.buffer("from", Scalar::F32, Access::Read, "read"), b.buffer("to", Scalar::F32, Access::Write, "written"));
    let tile = b.shared("tile", Scalar::F32, 64, 0);
    let tid = b.builtin(Builtin::LocalId);
    let zero = b.float(0.0, Scalar::F32);
    b.store(Base::Shared(tile), tid, zero, None);
    b.for_range("i", 0, 4, Unroll::No, |b, i| {
        let at = b.add(tid, i);
        let value = b.load("value", Base::Buffer(from), at, 1, None);
        b.store(Base::Buffer(to), at, value, None);
    });
    let kernel = Kernel { precedes: true, ..b.finish().following() };
    let on = |arch: &str| print(&kernel, &Target::by_arch(arch).expect("known")).expect("it prints").text;
    let text = on("sm_90a");
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no `{part}` in\n{text}"));
    assert!(at("griddepcontrol.launch_dependents") < at("= 0.0f"));
    assert!(at("= 0.0f") < at("griddepcontrol.wait") && at("griddepcontrol.wait") < at("for ("));
    // What the launch before wrote is no constant.
    assert!(!text.contains("__restrict__"));
    for arch in ["sm_80", "gfx942"] {
        assert!(!on(arch).contains("griddepcontrol") && on(arch).contains("__restrict__"), "{arch}");
    }
}
