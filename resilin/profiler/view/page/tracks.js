/* Where the spans of the timeline lie: rows of pixels by rank, thread and depth, and which span is at a place. */
"use strict";

const ROW = 17; // pixels of a depth
const GAP = 8; // below a thread
const HEAD = 22; // above a rank

/* Each track gets `top`; ranks get {rank, top}; and how high all are together. */
function layOut(tracks) {
  const ranks = [];
  let at = 0;
  let before = null;
  for (const track of tracks) {
    if (before === null || track.rank !== before.rank) {
      ranks.push({ rank: track.rank, top: at });
      at += HEAD;
    }
    track.top = at;
    at += Math.max(1, track.levels.length) * ROW + GAP;
    before = track;
  }
  return { ranks, height: at };
}

/* The first span of a level that ends after a time. Spans of a level follow one another. */
function firstAfter(level, at) {
  let low = 0;
  let high = level.start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (level.start[middle] + level.length[middle] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

/* The span at a time on a level, within some slack; -1: none. */
function spanAt(level, at, slack) {
  const index = firstAfter(level, at - slack);
  return index < level.start.length && level.start[index] <= at + slack ? index : -1;
}

/* What lies at a height: {track, depth}, or null. */
function rowAt(tracks, y) {
  for (const track of tracks) {
    const depth = Math.floor((y - track.top) / ROW);
    if (depth >= 0 && depth < track.levels.length) return { track, depth };
  }
  return null;
}

/* The place in a file of a span, or of the innermost function around it, if there is one of a known file; -1: none. */
function placeNear(track, depth, index, names) {
  const middle = track.levels[depth].start[index] + track.levels[depth].length[index] / 2;
  let nearest = -1;
  for (let at = depth; at >= 0; at -= 1) {
    const found = at === depth ? index : spanAt(track.levels[at], middle, 0);
    const place = found >= 0 ? names[track.levels[at].name[found]].place : -1;
    if (opens(place)) return place;
    if (nearest < 0) nearest = place;
  }
  return nearest;
}
