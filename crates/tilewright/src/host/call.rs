//! The function itself: checks, then each launch with its arguments, in order.

use super::signature::{Meaning, address};
use super::{Api, HostCode, expression, map};
use crate::Error;
use std::fmt::Write;
use tilewright_gen::program::{Binding, Launch};
use tilewright_ir::{ArgKind, Kernel, Scalar, Source};
use tilewright_problem::Role;
use tilewright_problem::contraction::Operand;

impl HostCode<'_> {
    /// The function that launches everything.
    pub(super) fn call(&self, out: &mut String, api: &Api, sources: &[Source]) -> Result<(), Error> {
        let (program, parameters) = (self.emission.program, self.parameters());
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "\n{}\n{{", self.prototype(api));
        for p in &parameters {
            if let Meaning::Memory(memory) = p.meaning {
                let _ = writeln!(out, "    const uint64_t {} = (uint64_t)(uintptr_t){};", address(memory), p.name);
            }
        }
        let _ = writeln!(out, "    {} status = {};", api.status, api.ok);
        let early = self.may_begin_early();
        if early {
            out.push_str("    int behind = 0; /* a launch of this call is ahead on the stream */\n");
        }
        for p in &parameters {
            for refused in &p.refused {
                let _ = writeln!(out, "    if ({refused}) return {};", api.invalid);
            }
        }
        for (n, launch) in program.launches.iter().enumerate() {
            let (Some(kernel), Some(source)) = (program.kernels.get(launch.kernel), sources.get(launch.kernel)) else {
                return Err(self.malformed(format!("launch {n} of kernel {}", launch.kernel)));
            };
            self.launch(out, api, launch, kernel, source, early)?;
        }
        out.push_str("    return status;\n}\n");
        Ok(())
    }

    fn malformed(&self, what: String) -> Error {
        Error::Host { name: self.name.into(), reason: format!("malformed program: {what}").into() }
    }

    fn launch(
        &self,
        out: &mut String,
        api: &Api,
        launch: &Launch,
        kernel: &Kernel,
        source: &Source,
        early: bool,
    ) -> Result<(), Error> {
        let c = self.emission.contraction;
        let (groups, most) = expression::groups(c, launch);
        let [_, y, z] = launch.grid;
        let _ = writeln!(out, "    {{ /* {} */", source.entry);
        match most {
            None => {
                let _ = writeln!(out, "        const uint64_t groups = {groups};");
            }
            Some(most) => {
                let _ = writeln!(out, "        const uint64_t work = {groups};");
                let _ = writeln!(out, "        const uint64_t groups = work < {most}u ? work : {most}u;");
            }
        }
        let _ = writeln!(out, "        const unsigned rest[] = {{{y}, {z}}};");
        // A part of the batch that this launch does not have: nothing is to be launched.
        let skipped = most.is_some() || launch.grid.contains(&0);
        if skipped {
            out.push_str("        if (groups != 0 && rest[0] != 0 && rest[1] != 0) {\n");
        }
        for (n, (arg, binding)) in kernel.args.iter().zip(&launch.args).enumerate() {
            let text = self.argument(n, &arg.kind, launch, binding)?;
            out.push_str(&text.replacen('\n', &format!(" /* {} */\n", arg.name), 1));
        }
        let count = kernel.args.len().min(launch.args.len());
        let pointers: Vec<String> = (0..count).map(|n| format!("(void *)&x{n}")).collect();
        let _ = writeln!(out, "        void *arguments[] = {{{}}};", pointers.join(", "));
        let early_word = match (early, kernel.follows) {
            (false, _) => "",
            (true, true) => ", behind",
            (true, false) => ", 0",
        };
        let _ = writeln!(
            out,
            "        status = {}_start(kernels->functions[{}], stream, groups, rest, {}, {}{early_word}, arguments);",
            self.name, launch.kernel, kernel.threads, source.dynamic_shared_bytes
        );
        let _ = writeln!(out, "        if (status != {}) return status;", api.ok);
        if early {
            out.push_str("        behind = 1;\n");
        }
        out.push_str(if skipped { "        }\n    }\n" } else { "    }\n" });
        Ok(())
    }

    /// The declaration of argument `n`, with its value.
    fn argument(&self, n: usize, kind: &ArgKind, launch: &Launch, binding: &Binding) -> Result<String, Error> {
        let c = self.emission.contraction;
        let from = |role: Role, bytes: u64| {
            // A result that is not stored has no memory.
            let at = if c.drop_c && role == Role::C { "(uint64_t)0".into() } else { address(role) };
            if bytes == 0 { at } else { format!("{at} + {bytes}u") }
        };
        let element = |operand: Operand, more: u64| {
            let bytes = c.tensor(operand).scalar.bytes_of(more);
            from(operand.into(), self.offset_bytes(operand).saturating_add(bytes))
        };
        let value = match (kind, binding) {
            (ArgKind::TensorMap(map), Binding::OperandMap(operand, first)) => {
                return map::encode(c, launch, n, map, &element(*operand, *first));
            }
            (ArgKind::TensorMap(map), Binding::UpMap(first)) => {
                return map::encode(c, launch, n, map, &from(Role::Up, c.b.scalar.bytes_of(*first)));
            }
            (ArgKind::TensorMap(map), Binding::SecondMap(operand, first)) => {
                let bytes = c.tensor(*operand).scalar.bytes_of(*first);
                return map::encode(c, launch, n, map, &from(Role::second(*operand), bytes));
            }
            (ArgKind::TensorMap(map), Binding::PreactivationsMap(first)) => {
                let bytes = c.preactivations().map_or(0, |x| x.scalar.bytes_of(*first));
                return map::encode(c, launch, n, map, &from(Role::Preactivations, bytes));
            }
            (ArgKind::TensorMap(map), Binding::WorkspaceMap(byte)) => {
                return map::encode(c, launch, n, map, &from(Role::Workspace, *byte));
            }
            (ArgKind::TensorMap(_), _)
            | (
                _,
                Binding::OperandMap(..)
                | Binding::UpMap(_)
                | Binding::SecondMap(..)
                | Binding::PreactivationsMap(_)
                | Binding::WorkspaceMap(_),
            ) => {
                return Err(self.malformed(format!("argument {n} is {binding:?}")));
            }
            (_, Binding::Buffer(operand)) => from((*operand).into(), 0),
            (_, Binding::Quant(quant)) => from((*quant).into(), 0),
            (_, Binding::Bias) => from(Role::Bias, 0),
            (_, Binding::Residual) => from(Role::Residual, 0),
            (_, Binding::Preactivations) => from(Role::Preactivations, 0),
            (_, Binding::Up) => from(Role::Up, 0),
            (_, Binding::Second(operand)) => from(Role::second(*operand), 0),
            (_, Binding::Reduction(number)) => from(Role::Reduction(*number), 0),
            (_, Binding::Workspace(byte)) => from(Role::Workspace, *byte),
            (_, Binding::Offset(operand)) => self.offset(*operand).to_string(),
            (_, Binding::Alpha) => "alpha".into(),
            // A result that is not stored is not read either.
            (_, Binding::Beta) if c.drop_c => "0".into(),
            (_, Binding::Beta) => "beta".into(),
            (_, Binding::AlphaIm) => "alpha_im".into(),
            (_, Binding::BetaIm) => "beta_im".into(),
            (_, Binding::I64(value)) => value.to_string(),
            (_, Binding::I32(value)) => value.to_string(),
            (_, Binding::Extent(extent)) => expression::extent(c, *extent),
            (_, Binding::Entries { first, most }) => {
                expression::factor(c, &tilewright_gen::program::Factor::Entries { first: *first, most: *most })
            }
            (_, Binding::Work) => expression::pieces(c, launch),
        };
        let ty = match kind {
            ArgKind::Buffer { .. } | ArgKind::TensorMap(_) => "uint64_t",
            ArgKind::Scalar(Scalar::I32) => "int32_t",
            ArgKind::Scalar(Scalar::U32) => "uint32_t",
            ArgKind::Scalar(Scalar::I64) => "int64_t",
            ArgKind::Scalar(Scalar::F32) => "float",
            ArgKind::Scalar(Scalar::F64) => "double",
            ArgKind::Scalar(other) => return Err(self.malformed(format!("argument {n} is a {other}"))),
        };
        // Values that C would take as another type: negative ones are in range as they stand.
        let cast = if ty == "uint64_t" { String::new() } else { format!("({ty})") };
        Ok(format!("        {ty} x{n} = {cast}({value});\n"))
    }
}
