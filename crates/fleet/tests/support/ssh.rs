//! An ssh server of a test, which stands for the nodes a, b and c. Test files of other crates include this file by its path.

use super::{missing, postgres, until};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "/usr/sbin/sshd";

/// The server, with its keys in a folder.
pub struct Sshd {
    folder: tempfile::TempDir,
    child: Child,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

impl Sshd {
    /// Starts it; `None`, said by name, where it is not installed.
    pub fn start() -> Option<Sshd> {
        if !Path::new(PROGRAM).exists() {
            missing::missing("an ssh server is not installed (Debian: openssh-server)");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]).status();
            assert!(made.is_ok_and(|status| status.success()), "no key");
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let conf = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPidFile none\nUsePAM no\n",
            at("host"),
            at("user.pub")
        );
        std::fs::write(at("sshd_config"), conf).expect("a file");
        let conf = format!(
            "Host a b c\nHostName 127.0.0.1\nPort {port}\nIdentityFile {}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n\
             LogLevel ERROR\n",
            at("user")
        );
        std::fs::write(at("ssh_config"), conf).expect("a file");
        if postgres::is_run_by_root() {
            // Where its unprivileged part lives.
            std::fs::create_dir_all("/run/sshd").expect("a folder");
        }
        let mut command = Command::new(PROGRAM);
        command.args(["-D", "-f", &at("sshd_config")]).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("it starts");
        let server = Sshd { folder, child };
        until("the ssh server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(server)
    }

    /// The file that tells `ssh -F` its nodes.
    pub fn config(&self) -> String {
        self.folder.path().join("ssh_config").display().to_string()
    }
}
