//! `tilewright explain`: what a plan's parameters do to the kernel, in words, numbers and figures.

use crate::args::ExplainArgs;
use crate::error::CliError;
use crate::figures::{Figure, figures, page, view};
use crate::output::{line, write_file};
use crate::{problem, session};
use serde_json::json;
use tilewright_problem::Problem;

/// Explains one problem's plan.
pub fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let case = problem::one(&args.problem, args.plan.workspace)?;
    let context = session::open(&args.place, &args.plan, false)?;
    let operation = session::operation(&context, &case, &args.plan)?;
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    let explained = operation.explanation(&plan).map_err(session::classify)?;
    let (c, subject, facts) = (explained.resolved.contraction, explained.subject(), &explained.facts);
    if args.json {
        let value = json!({
            "problem": case.problem.key(),
            "device": context.info().id,
            "plan": plan.to_string(),
            "readable": plan.readable(),
            "origin": origin.name(),
            "computes": format!("C[g,m,n] = {}", c.formula()),
            "keys": explained.notes,
            "structure": facts,
            "footprint": explained.resolved.footprint,
            "counts": explained.counts,
            "model": explained.estimate,
            "spec": *explained.resolved.spec,
        });
        line(&value.to_string())?;
    } else {
        line(&explained.text(&session::origin(&args.plan, &plan, origin)))?;
    }
    if args.svg.is_none() && args.figures.is_none() {
        return Ok(());
    }
    let mut figures = figures(&subject, facts);
    if let Problem::Conv(conv) = &case.problem
        && let Some(drawing) = view::draw(conv, c)
    {
        figures.insert(0, Figure::new("view", "The view: how a window of the image becomes a row of A", drawing));
    }
    let told = |path: &std::path::Path| if args.json { Ok(()) } else { line(&format!("figures: {}", path.display())) };
    if let Some(path) = &args.svg {
        let subtitle = format!("{} on {}; {plan}", plan.readable(), context.info().name);
        write_file(path, &page(&figures, &case.title, &subtitle))?;
        told(path)?;
    }
    if let Some(folder) = &args.figures {
        for figure in &figures {
            write_file(&folder.join(format!("{}.svg", figure.name)), &figure.document())?;
        }
        told(folder)?;
    }
    Ok(())
}
