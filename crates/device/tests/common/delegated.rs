//! The methods of a test's own device that another device answers.

/// Methods of a [`tilewright_device::Device`], by name, that a field of the implementing type answers: `delegated!(inner: compile alloc)`.
macro_rules! delegated {
    (@ $inner:tt prepare) => {
        fn prepare(&self, threads: usize) -> Result<(), tilewright_device::DeviceError> {
            self.$inner.prepare(threads)
        }
    };
    (@ $inner:tt compile) => {
        fn compile(
            &self,
            kernel: &tilewright_ir::Kernel,
        ) -> Result<std::sync::Arc<tilewright_device::Compiled>, tilewright_device::DeviceError> {
            self.$inner.compile(kernel)
        }
    };
    (@ $inner:tt memory) => {
        fn alloc(&self, bytes: u64) -> Result<tilewright_device::Buffer, tilewright_device::DeviceError> {
            self.$inner.alloc(bytes)
        }
        fn write(
            &self,
            buffer: &tilewright_device::Buffer,
            offset: u64,
            data: &[u8],
        ) -> Result<(), tilewright_device::DeviceError> {
            self.$inner.write(buffer, offset, data)
        }
        fn read(
            &self,
            buffer: &tilewright_device::Buffer,
            offset: u64,
            data: &mut [u8],
        ) -> Result<(), tilewright_device::DeviceError> {
            self.$inner.read(buffer, offset, data)
        }
        fn fill(&self, buffer: &tilewright_device::Buffer, byte: u8) -> Result<(), tilewright_device::DeviceError> {
            self.$inner.fill(buffer, byte)
        }
    };
    (@ $inner:tt sync) => {
        fn sync(&self) -> Result<(), tilewright_device::DeviceError> {
            self.$inner.sync()
        }
    };
    (@ $inner:tt time) => {
        fn time(
            &self,
            launches: &[tilewright_device::Launch],
            timing: &tilewright_device::Timing,
        ) -> Result<Vec<f64>, tilewright_device::DeviceError> {
            self.$inner.time(launches, timing)
        }
    };
    ($inner:tt: $($method:ident)*) => {
        $(delegated!(@ $inner $method);)*
    };
}
