//! Answers that are lost: a proxy cuts the server's answer to a claim at every byte.

use super::{Fleet, identity, run, tasks};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tilewright_fleet::{Address, FleetError, Lease, Queue, Server};

/// Passes bytes on, and cuts the connection after so many of the server's; negative for never.
struct Proxy {
    port: u16,
    left: Arc<AtomicI64>,
}

impl Proxy {
    fn new(to: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, left) = (listener.local_addr().expect("a port").port(), Arc::new(AtomicI64::new(-1)));
        let shared = left.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (up, down) = (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
                std::thread::spawn(move || pass(up, down, &AtomicI64::new(-1)));
                let left = shared.clone();
                std::thread::spawn(move || pass(server, client, &left));
            }
        });
        Proxy { port, left }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, left: &AtomicI64) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let before = left.load(Ordering::SeqCst);
        let some = if before < 0 { count } else { count.min(before as usize) };
        let cut = before >= 0 && left.fetch_sub(some as i64, Ordering::SeqCst) <= some as i64;
        if to.write_all(&bytes[..some]).is_err() || cut {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

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

#[test]
fn an_answer_cut_at_any_byte_leases_one_task() {
    let Some(fleet) = Fleet::new() else { return };
    fleet.server.sql(&format!("ALTER ROLE tilewright_worker PASSWORD '{}'", super::postgres::PASSWORD));
    let pass_file = fleet.server.folder.path().join("pass");
    std::fs::write(&pass_file, format!("*:*:*:*:{}\n", super::postgres::PASSWORD)).expect("a password file");
    // The server trusts its socket alone: let it trust this port, too.
    let conf = fleet.server.folder.path().join("data/pg_hba.conf");
    let text = std::fs::read_to_string(&conf).expect("a file").replace("scram-sha-256", "trust");
    std::fs::write(&conf, text).expect("a file");
    fleet.server.sql("SELECT pg_reload_conf()");
    let proxy = Proxy::new(fleet.server.port);
    let address = Address::parse(&format!("postgresql://tilewright_worker@127.0.0.1:{}/fleet", proxy.port)).unwrap();
    let mut server = Server::new(&address, identity("cut")).unwrap();
    server.join(&run(60), &tasks(200)).unwrap();
    let mut leases = Vec::new();
    // The answers to the two statements of a claim have fewer bytes than this.
    for cut in (0..240).step_by(3) {
        proxy.left.store(cut, Ordering::SeqCst);
        let first = server.claim();
        proxy.left.store(-1, Ordering::SeqCst);
        leases.push(match first {
            Ok(Some(lease)) => lease,
            Ok(None) => panic!("no task is left"),
            Err(e) => {
                assert!(e.is_passing(), "cut at {cut}: {e}");
                claimed(&mut server)
            }
        });
    }
    let all = leases.len() as i64;
    assert!(leases.iter().all(|lease| lease.epoch == 1 && lease.lapses == 0), "{leases:?}");
    let mut numbers: Vec<i64> = leases.iter().map(|lease| lease.task).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len() as i64, all);
    assert_eq!(fleet.count("tw.task WHERE state = 'leased'"), all);
}
