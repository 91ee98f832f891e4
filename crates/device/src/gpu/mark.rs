//! Marks on the stream: an event each.

use super::{Context, Driver, Handle};
use crate::{DeviceError, mark::Mark};
use std::sync::Arc;

pub(super) struct Event<D: Driver> {
    pub context: Arc<Context<D>>,
    pub event: Handle,
    /// Name of the last kernel ahead of it.
    pub entry: String,
}

impl<D: Driver> Mark for Event<D> {
    fn is_passed(&self) -> Result<bool, DeviceError> {
        let driver = self.context.driver()?;
        driver.passed(self.event).map_err(|f| self.context.failed(f, &self.entry))
    }
    fn wait(&self) -> Result<(), DeviceError> {
        self.context.wait_for(&*self.context.driver()?, &self.entry, self.event, self.context.deadline)
    }
}

impl<D: Driver> Drop for Event<D> {
    fn drop(&mut self) {
        // That of a dead context is leaked.
        if let Some(driver) = self.context.to_free() {
            driver.free_event(self.event);
        }
    }
}
