//! Gives the shared library the name that programs linked with it look for, wherever it was built.

fn main() {
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtilewright.so.{major}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
