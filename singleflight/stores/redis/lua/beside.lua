-- Whoever listens blocks on a list of its own beside the record. The braces keep all on one server.
local TOLD = 1000

local function beside(name)
  return (string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}') .. ':' .. name
end
