//! Spells transaction barriers, bulk copies through tensor maps and reads of a peer's shared memory, as CUDA inline PTX. Each
//! operation has one short helper, so that a kernel's body is a list of calls.

use super::Printer;
use super::cpp::INLINE;
use super::matrix::{letter, ptx};
use crate::*;

/// A helper that is one statement of inline PTX.
struct Helper<'a> {
    name: &'a str,
    /// Before the return type: template parameters.
    template: &'a str,
    params: &'a str,
    body: String,
}

impl Printer<'_> {
    /// Makes sure that the helper is defined and gives its name.
    fn helper(&mut self, helper: Helper) -> String {
        let Helper { name, template, params, body } = helper;
        self.prelude.function(name, |_| format!("{template}{INLINE} void {name}({params}) {{\n    {body}\n}}"))
    }

    /// The helper that makes an address of shared memory of a pointer, as PTX takes it.
    pub(super) fn shared_address(&mut self) -> String {
        self.prelude.function("tw_shared", |_| {
            format!("{INLINE} unsigned int tw_shared(const void* p) {{ return (unsigned int)__cvta_generic_to_shared(p); }}")
        })
    }

    fn barrier_at(&mut self, barrier: &TxRef) -> String {
        let name = self.tx_names[barrier.barriers.0 as usize].clone();
        match self.kernel.as_int(barrier.index) {
            Some(0) => name,
            _ => format!("{name} + {}", self.expr(barrier.index).at(super::dialect::prec::PRODUCT)),
        }
    }

    /// A read of another work-group's shared memory.
    pub(super) fn load_peer(&mut self, place: Place, mem: &MemRef, rank: ExprId) -> Result<(), Fault> {
        if self.target.dialect != Dialect::Cuda {
            return Err(self.without("clusters in this dialect"));
        }
        let ty = self.kernel.place_ty(place);
        let name = self.type_name(ty);
        let lanes = u32::from(ty.lanes);
        let (scalar, held, loaded) = (ty.scalar, letter(ty.scalar), ptx(ty.scalar));
        let address = self.shared_address();
        let function = self.prelude.function(&format!("tw_peer_{scalar}x{lanes}"), |_| {
            let part = |i: u32| if lanes == 1 { "value".to_string() } else { format!("value.s[{i}]") };
            let outs: Vec<String> = (0..lanes).map(|i| format!("\"={held}\"({})", part(i))).collect();
            let places: Vec<String> = (0..lanes).map(|i| format!("%{i}")).collect();
            let (vector, places) = match lanes {
                1 => (String::new(), places.join("")),
                _ => (format!(".v{lanes}"), format!("{{{}}}", places.join(","))),
            };
            format!(
                "{INLINE} {name} tw_peer_{scalar}x{lanes}(const void* from, unsigned int rank) {{\n    \
                 {name} value;\n    \
                 asm volatile(\"{{ .reg .b32 peer; mapa.shared::cluster.u32 peer, %{lanes}, %{}; ld.shared::cluster{vector}.{loaded} {places}, [peer]; }}\"\n        \
                 : {} : \"r\"({address}(from)), \"r\"(rank) : \"memory\");\n    \
                 return value;\n}}",
                lanes + 1,
                outs.join(", ")
            )
        });
        let at = self.address(mem).0;
        let rank = self.expr(rank).text;
        self.put(place, &format!("{function}({at}, {rank})"));
        Ok(())
    }

    /// A bulk copy of a box to shared memory. Coordinates beyond the map's dimensions are offsets of its im2col mode.
    fn bulk_load(&mut self, to: &MemRef, map_arg: ArgId, at: &[ExprId], barrier: &TxRef, peers: Option<ExprId>) -> String {
        let address = self.shared_address();
        let rank = match self.kernel.args.get(map_arg.index()).map(|arg| &arg.kind) {
            Some(ArgKind::TensorMap(map)) => map.extent.len().min(at.len()),
            _ => at.len(),
        };
        let offsets = at.len() - rank;
        let mode = if offsets > 0 { "im2col" } else { "tile" };
        let multicast = if peers.is_some() { "_multicast" } else { "" };
        let name = format!("tw_load_{mode}_{rank}d{multicast}");
        let mut params = String::from("void* to, const tw_tensor_map* map, unsigned long long* barrier");
        let mut ins = format!("\"r\"({address}(to)), \"l\"(map), \"r\"({address}(barrier))");
        for i in 0..rank {
            params += &format!(", int x{i}");
            ins += &format!(", \"r\"(x{i})");
        }
        for i in 0..offsets {
            params += &format!(", int offset{i}");
            ins += &format!(", \"h\"((unsigned short)offset{i})");
        }
        let places = |first: usize, count: usize| (first..first + count).map(|i| format!("%{i}")).collect::<Vec<_>>().join(",");
        let shift = if offsets > 0 { format!(", {{{}}}", places(3 + rank, offsets)) } else { String::new() };
        let (way, mask) = match peers {
            None => ("", String::new()),
            Some(_) => {
                params += ", int peers";
                ins += ", \"h\"((unsigned short)peers)";
                (".multicast::cluster", format!(", %{}", 3 + rank + offsets))
            }
        };
        let body = format!(
            "asm volatile(\"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes{way} [%0], [%1, \
             {{{}}}], [%2]{shift}{mask};\"\n        :: {ins} : \"memory\");",
            places(3, rank)
        );
        let function = self.helper(Helper { name: &name, template: "", params: &params, body });
        let (to, map) = (self.address(to).0, self.args[map_arg.index()].clone());
        let mut given = vec![to, format!("&{map}"), self.barrier_at(barrier)];
        given.extend(at.iter().chain(&peers).map(|e| self.expr(*e).text));
        format!("{function}({});", given.join(", "))
    }

    fn bulk_store(&mut self, from: &MemRef, map: ArgId, at: &[ExprId]) -> String {
        let (address, rank) = (self.shared_address(), at.len());
        let each = |spelled: &dyn Fn(usize) -> String| (0..rank).map(spelled).collect::<Vec<_>>().join(", ");
        let body = format!(
            "asm volatile(\"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%1, {{{}}}], [%0];\"\n        \
             :: \"r\"({address}(from)), \"l\"(map), {} : \"memory\");",
            each(&|i| format!("%{}", 2 + i)),
            each(&|i| format!("\"r\"(x{i})"))
        );
        let params = format!("const tw_tensor_map* map, const void* from, {}", each(&|i| format!("int x{i}")));
        let function = self.helper(Helper { name: &format!("tw_store_tile_{rank}d"), template: "", params: &params, body });
        let mut given = vec![format!("&{}", self.args[map.index()]), self.address(from).0];
        given.extend(at.iter().map(|e| self.expr(*e).text));
        format!("{function}({});", given.join(", "))
    }

    /// A call of a helper on a transaction barrier, whose address is the first operand of its PTX.
    fn on_barrier(&mut self, barrier: &TxRef, name: &str, operation: &str, more: Option<(&str, String)>) -> String {
        let address = self.shared_address();
        let (param, operand, given) = match more {
            Some((param, given)) => (format!(", unsigned int {param}"), format!(", \"r\"({param})"), format!(", {given}")),
            None => Default::default(),
        };
        let body = format!("asm volatile(\"{operation}\" :: \"r\"({address}(barrier)){operand} : \"memory\");");
        let function = self.helper(Helper { name, template: "", params: &format!("unsigned long long* barrier{param}"), body });
        format!("{function}({}{given});", self.barrier_at(barrier))
    }

    fn wait(&mut self, barrier: &TxRef, parity: ExprId) -> String {
        let address = self.shared_address();
        let body = String::from(
            "unsigned int done;\n    \
             do {\n        \
             asm volatile(\"{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }\"\n            \
             : \"=r\"(done) : \"r\"(barrier), \"r\"(parity) : \"memory\");\n    \
             } while (!done);",
        );
        let params = "unsigned int barrier, unsigned int parity";
        let function = self.helper(Helper { name: "tw_barrier_wait", template: "", params, body });
        format!("{function}({address}({}), {});", self.barrier_at(barrier), self.expr(parity).text)
    }

    /// A call of a helper whose only operand is a constant of its PTX, or that has none.
    pub(super) fn fixed(&mut self, name: &str, operation: &str, constant: Option<u32>) -> String {
        let (template, operand, given) = match constant {
            Some(n) => ("template <int N> ", " \"n\"(N)", format!("<{n}>")),
            None => ("", "", String::new()),
        };
        let body = format!("asm volatile(\"{operation}\" ::{operand} : \"memory\");");
        let function = self.helper(Helper { name, template, params: "", body });
        format!("{function}{given}();")
    }

    pub(super) fn bulk(&mut self, op: &BulkOp) -> Result<(), Fault> {
        if self.target.dialect != Dialect::Cuda {
            return Err(self.without("bulk copies in this dialect"));
        }
        let line = match op {
            BulkOp::Init { barrier, arrivals } => {
                let arrivals = ("arrivals", arrivals.to_string());
                self.on_barrier(barrier, "tw_barrier_init", "mbarrier.init.shared::cta.b64 [%0], %1;", Some(arrivals))
            }
            BulkOp::InitFence => self.fixed("tw_barrier_init_fence", "fence.mbarrier_init.release.cluster;", None),
            BulkOp::Expect { barrier, bytes } => {
                let operation = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;";
                self.on_barrier(barrier, "tw_barrier_expect", operation, Some(("bytes", bytes.to_string())))
            }
            BulkOp::Arrive { barrier } => {
                self.on_barrier(barrier, "tw_barrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [%0];", None)
            }
            // Ordered within the work-group only: the release of a stage says that its reads are over. An arrival that releases
            // to the cluster waits for all memory of the device first, with every k-tile.
            BulkOp::ArriveAt { barrier, rank } => {
                let operation =
                    "{ .reg .b32 peer; mapa.shared::cluster.u32 peer, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [peer]; }";
                let rank = self.expr(*rank).text;
                self.on_barrier(barrier, "tw_barrier_arrive_at", operation, Some(("rank", rank)))
            }
            BulkOp::Wait { barrier, parity } => self.wait(barrier, *parity),
            BulkOp::Load { to, map, at, barrier, peers } => self.bulk_load(to, *map, at, barrier, *peers),
            BulkOp::Store { from, map, at } => self.bulk_store(from, *map, at),
            BulkOp::StoreCommit => self.fixed("tw_store_commit", "cp.async.bulk.commit_group;", None),
            BulkOp::StoreWait { pending } => {
                self.fixed("tw_store_wait_read", "cp.async.bulk.wait_group.read %0;", Some(*pending))
            }
            BulkOp::ProxyFence => self.fixed("tw_proxy_fence", "fence.proxy.async.shared::cta;", None),
            BulkOp::Registers { count, raise } => {
                let way = if *raise { "inc" } else { "dec" };
                format!("asm volatile(\"setmaxnreg.{way}.sync.aligned.u32 {count};\");")
            }
        };
        self.line(&line);
        Ok(())
    }
}
