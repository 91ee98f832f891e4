//! A network that drops packets: server and workers are alone in a network namespace, and its only link goes down.

use super::{Fleet, SIMULATION, ended, ends, until};
use crate::postgres::{entering_network_of, in_network_of, is_run_by_root};
use std::process::{Child, Command};
use std::time::Duration;

/// A network namespace, kept by a process that sleeps in it.
struct Network(Child);

impl Drop for Network {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

impl Network {
    fn new() -> Option<Network> {
        let kinds = if is_run_by_root() { "-n" } else { "-Urn" };
        let mut network = Network(Command::new("unshare").args([kinds, "sleep", "600"]).spawn().ok()?);
        let entered = |what: &str| std::fs::read_link(format!("/proc/{what}/ns/net")).ok();
        let (its, mut made) = (network.0.id().to_string(), false);
        until("it has a network of its own, or may not", || {
            made = entered(&its).is_some_and(|its| Some(its) != entered("self"));
            made || network.0.try_wait().is_ok_and(|ended| ended.is_some())
        });
        (made && network.link("up")).then_some(network)
    }

    fn link(&self, state: &str) -> bool {
        let mut ip = entering_network_of(self.0.id());
        ip.args(["ip", "link", "set", "lo", state]).status().is_ok_and(|status| status.success())
    }
}

/// Packets in flight vanish, and new connections find no network: searches go on, and no task is done twice.
pub fn dropped_packets_stop_no_search() {
    let Some(mut fleet) = Fleet::new() else { return };
    let Some(network) = Network::new() else {
        return super::forbidden("no network namespace with a link (right: CAP_SYS_ADMIN; Debian: iproute2)");
    };
    fleet.server.trust_tcp();
    fleet.server.kill();
    fleet.server.network_of = Some(network.0.id());
    fleet.server.up();
    let url = fleet.server.tcp("tilewright_worker");
    // Tasks of five seconds: on a busy machine, too, none ends before the link goes down.
    let start = |name: &str| {
        let inside = in_network_of(network.0.id(), &Command::new(SIMULATION));
        fleet.complete(inside, &url, name, "tasks=4 trials=50 sleep=100 lease=10000 poll=100").spawn().expect("it starts")
    };
    let workers = ["one", "two"].map(start);
    until("trials are shipped", || fleet.count("tw.trial") > 5);
    let before = fleet.count("tw.trial");
    assert!(network.link("down"));
    let written = fleet.journals();
    std::thread::sleep(Duration::from_secs(1));
    // What was sent before has arrived.
    let cut = fleet.count("tw.trial");
    until("the searches go on", || fleet.journals() >= written + 10);
    assert_eq!(fleet.count("tw.trial"), cut, "packets arrive");
    assert!(network.link("up"));
    let said = workers.map(|worker| ends(worker, 0));
    let mut once = ended(&said);
    once.dedup();
    assert_eq!((ended(&said), once.len()), (once.clone(), 4));
    // The link was down for less than a lease.
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND epoch = 1 AND lapses = 0"), 4, "{said:?}");
    assert!(fleet.count("tw.trial") > before);
    assert_eq!(fleet.count("tw.trial"), fleet.journals() as i64);
}
