//! A proxy in front of a server: it can cut an answer at a byte, or stop passing anything on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

/// What a test tells the proxy.
pub struct State {
    /// The connection is cut after so many bytes of the server's; negative for never.
    pub left: AtomicI64,
    /// Nothing is passed on; connections stay open, and new ones are accepted.
    pub is_stalled: AtomicBool,
}

/// The proxy.
pub struct Proxy {
    port: u16,
    /// Its state.
    pub state: Arc<State>,
}

impl Proxy {
    /// Before a server at this port.
    pub fn new(to: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let state = Arc::new(State { left: AtomicI64::new(-1), is_stalled: AtomicBool::new(false) });
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (up, down) = (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
                let (asked, answered) = (shared.clone(), shared.clone());
                std::thread::spawn(move || pass(up, down, &asked, &AtomicI64::new(-1)));
                std::thread::spawn(move || pass(server, client, &answered, &answered.left));
            }
        });
        Proxy { port, state }
    }

    /// The server's address through it.
    pub fn url(&self) -> String {
        format!("postgresql://tilewright_worker@127.0.0.1:{}/fleet", self.port)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, state: &State, left: &AtomicI64) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while state.is_stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let before = left.load(Ordering::SeqCst);
        let some = if before < 0 { count } else { count.min(before as usize) };
        let cut = before >= 0 && left.fetch_sub(some as i64, Ordering::SeqCst) <= some as i64;
        if to.write_all(&bytes[..some]).is_err() || cut {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}
