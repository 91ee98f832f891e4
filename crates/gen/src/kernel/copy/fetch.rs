//! How load waves bring a tile: in aligned vectors of its rows where the view is plain, else element by element through the view.

use super::fetch_layout::Lines;
use super::fetch_lines::Stream;
use super::fetch_tile::FetchTile;
use crate::kernel::tile::position::TilePosition;
use tilewright_ir::affine::Coord;
use tilewright_ir::*;

impl FetchTile<'_> {
    /// The walk along k of a result tile begins, where there is something to prepare.
    pub fn begin(&self, b: &mut Builder, at: &TilePosition, row_start: Coord, k: ExprId) -> Option<Stream> {
        let lines = Lines::new(self)?;
        Some(lines.begin(b, self.place_of(at), row_start, k))
    }

    /// Writes the tile that starts at `k` into this stage of the circular buffer; the next one starts `step` further.
    pub fn emit(
        &self,
        b: &mut Builder,
        stream: Option<&Stream>,
        buffer: ExprId,
        at: &TilePosition,
        row_start: Coord,
        (k, step): (ExprId, i64),
    ) {
        match (Lines::new(self), stream) {
            (Some(lines), Some(stream)) => lines.emit(b, stream, buffer, k, step),
            _ => self.by_view(b, buffer, self.place_of(at), row_start, k),
        }
    }
}
