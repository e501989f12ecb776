// The commit that this build was made from.
#pragma once

namespace mr {

// "61c3958ab", with "-dirty" behind it where files differed from it; empty where the source is not
// a clone. Defined in a file that cmake/version.cmake writes.
const char* commit();

}  // namespace mr
