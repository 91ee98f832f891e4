//! Texts: problems, plans, case files.

use crate::harness::fuzz;
use std::sync::LazyLock;
use tilewright_check::random::{self, Recipe};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_problem::Problem;
use tilewright_problem::cases::{self, CaseOptions};
use tilewright_problem::lower::{ConvForm, lower};
use tilewright_tune::ProblemKey;

/// Random problems and plans of all kinds.
pub fn pairs() -> &'static [random::Pair] {
    static PAIRS: LazyLock<Vec<random::Pair>> = LazyLock::new(|| {
        let reductions = Recipe { reductions: true, ..Recipe::emulated() };
        let recipes = [reductions, Recipe::convolutions(), Recipe::formats(), Recipe::grouped(), Recipe::units()];
        let target = target();
        recipes.iter().flat_map(|recipe| (0..6).filter_map(|seed| random::pair(&target, recipe, seed))).collect()
    });
    &PAIRS
}

pub fn target() -> Target {
    Target::by_arch("sm_90a").expect("a known architecture")
}

/// Lowers, plans and generates a problem, as each command does.
pub fn planned(problem: &Problem) {
    assert_eq!(Problem::parse(&problem.key()).as_ref(), Ok(problem));
    for form in ConvForm::of(problem) {
        let _ = lower(problem, form);
    }
    let Ok(space) = Space::new(problem, &target()) else { return };
    if let Ok(resolved) = space.resolve(&space.fallback()) {
        let _ = resolved.generate(1 << 24);
    }
    ProblemKey::of(&space).text();
}

#[test]
fn problems() {
    let valid = pairs().iter().map(|pair| pair.problem.key().into_bytes()).collect();
    fuzz("problems", valid, |input| {
        planned(&Problem::parse(&String::from_utf8_lossy(input)).map_err(|error| error.to_string())?);
        Ok(())
    });
}

#[test]
fn plans() {
    let pairs = pairs();
    let spaces: Vec<Space> = pairs.iter().filter_map(|pair| Space::new(&pair.problem, &target()).ok()).collect();
    let valid = pairs.iter().map(|pair| pair.plan.to_string().into_bytes()).collect();
    fuzz("plans", valid, |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(constraint) = Constraint::parse(&text) {
            assert_eq!(Constraint::parse(&constraint.to_string()).as_ref(), Ok(&constraint));
            let space = &spaces[text.len() % spaces.len()];
            let _ = space.clone().constrained(&constraint).fallback();
        }
        let plan = Plan::parse(&text).map_err(|error| error.to_string())?;
        assert_eq!(Plan::parse(&plan.to_string()).as_ref(), Ok(&plan));
        // Some of them: most of the time is theirs.
        for space in spaces.iter().cycle().skip(text.len() % spaces.len()).step_by(7).take(4) {
            if let Ok(resolved) = space.resolve(&plan) {
                let _ = resolved.generate(1 << 20);
            }
        }
        Ok(())
    });
}

#[test]
fn case_files() {
    let texts = [
        "set,dtype,trans_a,trans_b,m,n,k,batch,lda,bias,activation,residual,reduce,keep_c\n\
         a,bf16,0,1,512,256,64,2,64,n,gelu,1,max:n sum:m,1\nb,f32,,,3,5,7,,,,,,,\n",
        "m,n,k,dtype,conj_a,conj_b,alpha_im,beta_im,order\n8,8,8,complex64,1,0,1,1,col\n",
        "m,n,k,groups,ragged,dtype\n64,32,16,4,m,f16\n64,32,16,4,k,f16\n",
        "m,n,k,dtype,b_dtype,zero_points,scales,out_dtype\n64,32,128,f16,i4,b,n1x128,f32\n64,32,128,i8,,ab,mn,f16\n",
        "n,groups,k,c,r,s,h,w,stride,pad,dilation,layout,direction,dtype,bias,activation\n4,2,8,8,3,3,14,14,2,1,1,nhwc,wrw,f16,1,relu\n",
        "dims,n,groups,k_per_group,c_per_group,filter,input,stride,pad_begin,pad_end,residual,mask\n3,2,1,4,4,3x3x3,8x8x8,1x2x1,1,0x1x1,1,0\n",
        "problem,calls,layers,call,device,torch_us,ours_us,reason\nreduce_f32_s4x3_o0_sum,1,x,mm,cuda:0,1.5,2.5,\n,1,y,mm,cuda:0,1.5,2.5,strange\n",
    ];
    let rows: String = pairs().iter().map(|pair| format!("{},x\n", pair.problem.key())).collect();
    let mut valid: Vec<_> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    valid.push(format!("problem,set\n{rows}").into_bytes());
    fuzz("cases", valid, |input| {
        let file = cases::parse("cases.csv", "cases", input, &CaseOptions::default()).map_err(|error| error.to_string())?;
        file.cases.iter().take(8).for_each(|case| planned(&case.problem));
        Ok(())
    });
}
