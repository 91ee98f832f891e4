//! Answers that are lost or late: a proxy cuts the server's answer to a claim at every byte, or stops passing anything on.

use super::proxy::Proxy;
use super::{Fleet, ends, full, identity, run, tasks, until};
use std::sync::atomic::Ordering;
use tilewright_fleet::{Address, FleetError, Lease, Queue, Server};

/// Claims until an answer comes.
fn claimed(server: &mut Server) -> Lease {
    for _ in 0..50 {
        match server.claim() {
            Ok(Some(lease)) => return lease,
            Ok(None) => panic!("no task is left"),
            Err(FleetError::Away { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no answer");
}

pub fn an_answer_cut_at_any_byte_leases_one_task() {
    let Some(fleet) = Fleet::new() else { return };
    fleet.server.trust_tcp();
    let proxy = Proxy::new(fleet.server.port);
    let address = Address::parse(&proxy.url()).unwrap();
    let mut server = Server::new(&address, identity("cut")).unwrap();
    server.join(&run(60), &tasks(1000)).unwrap();
    let (mut leases, mut lost, mut cut, mut is_cut) = (Vec::new(), 0, 0, true);
    let step = if full() { 1 } else { 7 };
    // Until the answers to the statements of a claim have no byte after the cut.
    while is_cut {
        assert!(cut < 1000, "answers have no end");
        proxy.state.left.store(cut, Ordering::SeqCst);
        let first = server.claim();
        is_cut = proxy.state.left.swap(-1, Ordering::SeqCst) <= 0;
        lost += i64::from(first.is_err());
        leases.push(match first {
            Ok(Some(lease)) => lease,
            Ok(None) => panic!("no task is left"),
            Err(e) => {
                assert!(e.is_passing(), "cut at {cut}: {e}");
                claimed(&mut server)
            }
        });
        cut += step;
    }
    assert!(lost > 100 / step, "{lost} answers were lost, {cut} bytes");
    let all = leases.len() as i64;
    assert!(leases.iter().all(|lease| lease.epoch == 1 && lease.lapses == 0), "{leases:?}");
    let mut numbers: Vec<i64> = leases.iter().map(|lease| lease.task).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len() as i64, all);
    assert_eq!(fleet.count("tw.task WHERE state = 'leased'"), all);
}

/// A proxy that accepts and never answers: calls end at their deadline, searches go on, and no lease lapses before its time.
pub fn a_proxy_that_stalls_stops_no_search() {
    let Some(fleet) = Fleet::new() else { return };
    fleet.server.trust_tcp();
    let proxy = Proxy::new(fleet.server.port);
    let options = "tasks=2 trials=180 sleep=100 lease=60000 poll=100";
    let workers: Vec<_> = (0..2).map(|n| fleet.start_at(&proxy.url(), &format!("w{n}"), options)).collect();
    until("trials are shipped", || fleet.count("tw.trial") > 0);
    proxy.state.is_stalled.store(true, Ordering::SeqCst);
    let before = fleet.journals();
    until("the searches go on", || fleet.journals() >= before + 20);
    // What was sent before has arrived.
    let cut = fleet.count("tw.trial");
    // Longer than the deadline of a call at the speed of these trials.
    until("trials go on without a server", || fleet.journals() >= before + 2 * 105);
    assert_eq!(fleet.count("tw.trial"), cut, "the proxy passes something on");
    proxy.state.is_stalled.store(false, Ordering::SeqCst);
    let said: Vec<String> = workers.into_iter().map(|worker| ends(worker, 0)).collect();
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND epoch = 1 AND lapses = 0"), 2, "{said:?}");
    assert_eq!(said.concat().matches("done p").count(), 2, "{said:?}");
    assert_eq!((fleet.count("tw.trial"), fleet.journals()), (2 * 180, 2 * 180));
}
