//! Foreign work on an OpenCL device's queue.

use super::device::{ClDevice, Memory};
use super::handle::{Handle, check};
use crate::native::{Native, NativeHandles};
use crate::{Buffer, DeviceError, Timing};
use opencl3::{command_queue as cl_queue, event as cl_event};
use std::sync::Arc;

impl Native for ClDevice {
    fn handles(&self) -> NativeHandles {
        NativeHandles::OpenCl {
            context: self.context.handle.get() as usize,
            device: self.context.found.id() as usize,
            queue: self.commands.get() as usize,
        }
    }

    fn memory(&self, buffer: &Buffer) -> Result<usize, DeviceError> {
        Ok(buffer.memory::<Memory>(&self.info.id)?.handle.get() as usize)
    }

    /// The work is queued behind a marker that waits for a gate: the host's time for queueing is not measured.
    fn time(&self, enqueue: &mut dyn FnMut() -> Result<(), String>, timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        let mut queue = self.queue()?;
        queue.entry = "a library's kernel".into();
        let flush = self.flush_buffer(&mut queue, timing)?;
        let mut times = Vec::with_capacity(timing.repeats as usize);
        for _ in 0..timing.repeats {
            if let Some(buffer) = &flush {
                self.fill_queue(&mut queue, buffer, 0)?;
            }
            self.wait(&mut queue)?;
            let gate = cl_event::create_user_event(self.context.handle.get());
            let gate = Handle::new(check("clCreateUserEvent", gate).map_err(|f| self.failed(f))?, cl_event::release_event);
            let start = self.marker(&[&gate])?;
            let done = enqueue();
            let end = self.marker(&[]);
            // Whatever happened, the gate must open, or the queue never ends.
            let opened = cl_event::set_user_event_status(gate.get(), cl_event::CL_COMPLETE);
            check("clSetUserEventStatus", opened).map_err(|f| self.failed(f))?;
            let end = Arc::new(end?);
            queue.last = Some(end.clone());
            self.wait(&mut queue)?;
            done.map_err(|reason| DeviceError::Api { device: self.info.id.clone(), call: "a library", reason })?;
            let from = self.stamp(&start, cl_event::CL_PROFILING_COMMAND_END)?;
            let to = self.stamp(&end, cl_event::CL_PROFILING_COMMAND_END)?;
            times.push(to.saturating_sub(from) as f64 * 1e-3);
        }
        Ok(times)
    }
}

impl ClDevice {
    fn marker(&self, after: &[&Handle]) -> Result<Handle, DeviceError> {
        let list: Vec<_> = after.iter().map(|h| h.get()).collect();
        let events = if list.is_empty() { std::ptr::null() } else { list.as_ptr() };
        // SAFETY: the events are alive during the call.
        let raw = unsafe { cl_queue::enqueue_marker_with_wait_list(self.commands.get(), list.len() as u32, events) };
        Ok(Handle::new(check("clEnqueueMarkerWithWaitList", raw).map_err(|f| self.failed(f))?, cl_event::release_event))
    }
}
