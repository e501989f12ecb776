#include "lab/story/storybook_content.h"

namespace mr::story {

// Plots in which the wish is to do, to dare, to see or to raise something. Each case carries its
// own failures, advice and outcome, so that what helps is always what was missing.
const std::string_view kStorybookPlotsOfTrying = R"(
# ---- to learn something -------------------------------------------------------------------------
@rule plot_learn
// {learn_wish} {learn_try} // {despair} {meet} {talk}
  {learn_tip} // {brave_up} {skill.win} {hooray} {pet.may_joy} {thanks} // {learn_end} {bedtime}

@rule learn_wish
2* More than anything, {hero} wanted to {skill=skill}.
2* {hero} had one big wish: to {skill=skill}.
"I wish I could {skill=skill}," said {hero} every day.
All of {hero}'s friends could {skill=skill}, but {hero} could not.

@rule learn_try
On Monday {hero.they} tried, but {skill.fail1}. On Tuesday {hero.they} tried again, but
  {skill.fail2}.
The first time {hero.they} tried, {skill.fail1}. The second time, {skill.fail2}.
{^hero.they} tried before breakfast, but {skill.fail1}. {^hero.they} tried after lunch, but
  {skill.fail2}.
{^hero.they} practiced and practiced. First {skill.fail1}. Then {skill.fail2}.

@rule learn_tip
2* "Here is a secret," said the {helper}. "{skill.tip}."
"I could not do it at first either," said the {helper}. "{skill.tip}."
"Nobody is born knowing how," said the {helper}. "{skill.tip}."
The {helper} thought for a while. "{skill.tip}," {helper.they} said.

@rule learn_end
From that day on, {hero} {skill.after}.
After that, {hero} {skill.after}, and {hero.they} taught [everyone|anyone] who asked.
And when somebody said, "I cannot do it," {hero} always answered, "Not yet!"
{hero} had wished to {skill}, and now {hero.they} could.

@table skill: do | fail1 | fail2 | tip | win | after
ride a bicycle | the wheels wobbled and {hero.they} tipped into a bush
  | {hero.they} rolled backward into a puddle | Look far ahead and not down at your feet
  | The wheels hummed, the wind tickled {hero.their} ears, and {hero.they} rode all the way down
  the lane.
  | rode to the market every morning, ringing the bell
whistle | only air came out | it sounded like a leaky kettle
  | Make your mouth small and round, like a cherry, and blow softly
  | Out came a note as clear as a bell. | whistled a tune on the way to school
swim | {hero.they} swallowed a lot of water | {hero.they} sank like a stone
  | Lie back, fill your belly with air, and let the water hold you
  | The water held {hero.them} up like a big soft bed, and {hero.they} kicked and splashed all the
  way across.
  | swam every day until the leaves fell
skip stones | the stone went plop | the stone went plop again, even louder
  | Choose a flat stone and throw it low, like a bird close to the water
  | The stone hopped one, two, three, four, five times. | kept a flat stone in every pocket
bake bread | the loaf was as hard as a brick | the loaf was as flat as a plate
  | Keep the dough warm and let it sleep for an hour
  | The loaf rose up round and golden, and the whole house smelled good.
  | baked a loaf for the neighbors every Sunday
fly a kite | the kite dragged along the ground | the kite dove straight into a tree
  | Wait for the wind, then run toward it and let out the string bit by bit
  | The kite leaped up, higher than the rooftops, and danced among the clouds.
  | flew the kite on every windy day
skate on the ice | both feet flew out in front | {hero.they} spun around and sat down hard
  | Bend your knees and push a little to each side
  | {^hero.they} slid across the pond like a swan, and even made a turn. | skated all winter long
juggle three apples | one apple bounced off {hero.their} head | all three apples rolled away
  | Begin with one apple, then two, and only then three
  | Around and around went the apples, and not one of them fell.
  | juggled at every birthday party
draw a horse | it looked like a table | it looked like a very sad dog
  | Look at a real horse first, and draw what you see, line by line
  | There on the paper stood a horse with a flying mane. | drew a new horse every evening
play the flute | it squeaked like a mouse | it honked like a goose
  | Play one slow note until it is beautiful, and then another
  | A sweet little song floated out, and even the birds stopped to listen.
  | played the flute when the sun went down
climb the tall oak tree | {hero.they} slid right back down | a branch bent and {hero.they} dropped
  into the grass
  | Hold on with three and move only one, and never hurry
  | Branch by branch {hero.they} climbed, until {hero.they} could see the whole world.
  | climbed up every evening to wave at the moon
jump rope | the rope wrapped around {hero.their} ankles | {hero.they} tripped and landed in the
  daisies
  | Sing a song and jump on every beat
  | Hop, hop, hop, went {hero}, twenty times without a stop. | jumped rope all the way home
tie a bow | it became a big knot | it came apart at once
  | Make two loops like rabbit ears, and let one hop through the hole
  | The bow sat there, neat and round, like a butterfly. | tied bows on everything, even on the
  teapot
read a whole book | the letters hopped about like fleas | {hero.they} fell asleep on the first page
  | Put a finger under each word and say it out loud
  | Word after word, page after page, the story opened like a door.
  | read a story out loud every night
row a boat | the boat turned in circles | {hero.they} lost an oar
  | Pull with both arms at the same time, slowly and evenly
  | The little boat slid forward, as straight as an arrow. | rowed out to look at the ducks
make pancakes | the pancake stuck to the pan | the pancake landed on {hero.their} head
  | Wait for the little bubbles, then flip it with a quick, happy flick
  | Up went the pancake, over it turned, and down it came, golden and round.
  | made pancakes for everyone on Saturdays
stand on one leg | {hero.they} tipped to the left | {hero.they} tipped to the right
  | Look at one thing that does not move, and breathe slowly
  | {^hero.they} stood there, as still as a stork, while {hero.they} counted to one hundred.
  | stood on one leg while brushing {hero.their} teeth
tell a funny joke | nobody laughed | {hero.they} forgot the ending
  | Tell it slowly, and keep the best word for last
  | Everyone laughed so hard that they had to hold on to each other. | told a new joke every morning
whittle a spoon | the knife slipped and the bowl split | it came out as thin as a toothpick
  | Cut away from yourself, and let the grain show you the way
  | A smooth little spoon lay in {hero.their} hand, with a leaf on the handle.
  | stirred every soup with it
walk on stilts | the left stilt went east and the right one west | {hero.they} landed in the rain
  barrel
  | Take tiny steps, and never stop moving
  | Up above the hedges went {hero}, as tall as a stork. | picked the highest plums for everybody
knit a sock | there was a hole where the heel should be | it grew as long as a snake
  | Count the stitches out loud, and turn where the count is even
  | The sock fit like a warm hug, heel and toe. | knitted socks for half the neighbors
sing in tune | the cat ran out of the room | the windows rattled
  | Hum the note first, very softly, until you feel it in your nose
  | The note rang out, round and true, and another one after it. | sang while washing the dishes
do a cartwheel | {hero.their} arms folded like wet paper | {hero.they} rolled into the nettles
  | Look at the spot between your hands, and kick up as if there were a wall
  | Hands, feet, hands, feet, the whole sky turned around {hero.them}. | turned a cartwheel after
  every breakfast
catch a ball | it bounced off {hero.their} nose | it flew straight through {hero.their} fingers
  | Watch it all the way, and let your hands give a little, like a nest
  | Smack, went the ball, right into {hero.their} two hands. | never dropped a plum again
write the alphabet | the letters leaned on each other like tired sheep | the ink made a lake
  | Make each letter as slowly as a snail, and leave it room to breathe
  | There it stood on the page, every letter straight and proud. | wrote a line of poetry every night
milk the cow | the cow stepped into the pail | not one drop came out
  | Warm your hands, rest your head on her side, and squeeze from the top down
  | Swish, swish, went the milk, and the pail filled to the brim. | brought in the milk each dawn
build a snowman | the head rolled down the hill | the belly crumbled to powder
  | Wait until the snow is wet enough to squeak, and roll it in one direction
  | Three great balls stood one on top of the other, with a carrot and a crooked smile.
  | built a whole family of them every winter
spin a top | it fell over at once | it shot under the cupboard
  | Wind the string tight, and pull it back as if you were starting a race
  | The top hummed and stood so still that it seemed to sleep. | spun it for every baby who cried
make shadow animals | the rabbit looked like a mitten | the swan looked like a boot
  | Move closer to the wall, and keep your thumb very still
  | A rabbit hopped over the wallpaper, and a swan bowed its long neck. | put on a shadow play
  whenever the lights went out
float on the water | {hero.their} toes sank first | a wave went up {hero.their} nose
  | Put your ears under the water, look at the clouds, and breathe like a bellows
  | {hero} lay there like a leaf, and the clouds swam by. | floated every evening until the first
  star
speak to a crowd | {hero.their} voice hid in {hero.their} shoes | all the words came out backward
  | Talk to the last row as if they were your best friends
  | Every word flew out to the very last bench, and the people cheered. | welcomed all the guests at
  the fair
blow a bubble | it popped on {hero.their} chin | only spit came out
  | Breathe as slowly as if you were asleep
  | A bubble as big as a melon floated off, with a rainbow on its skin. | blew one for each cloud
  in the sky

# ---- to be brave --------------------------------------------------------------------------------
@rule plot_fear
// {fear_wish} // {one_day}, {fear.need}. {fear_try} // {meet} {talk} {fear_tip} //
  {brave_up} {fear_face} {fear.truth}. {hooray} {pet.may_joy} // {fear_end} {bedtime}

@rule fear_wish
But {hero} had a secret. {^hero.they} was afraid of {fear=fear}, and {hero.they} wished to be brave.
{hero} did not like {fear=fear} at all. How {hero.they} wished to be brave!
{hero} was afraid of {fear=fear}. "I wish I were brave," {hero.they} often said.

@rule fear_try
{hero} took three steps, but {hero.their} knees began to shake, and {hero.they} ran back.
{hero} closed {hero.their} eyes and tried, but {hero.their} heart went thump, thump, thump.
Twice {hero} tried, and twice {hero.they} turned around.
{hero} wanted to go on, but {hero.their} feet would not move.

@rule fear_tip
"Everyone is afraid of something," said the {helper}. "{fear.tip}."
"I used to be afraid of that too," said the {helper}. "{fear.tip}."
"Being brave means being scared and going anyway," said the {helper}. "{fear.tip}."

@rule fear_face
{^hero.they} did just as the {helper} had said.
{^hero.they} remembered the words of the {helper} and went on, step by step.
{^hero.their} heart was beating fast, but {hero.they} did not turn back.

@rule fear_end
From then on, {hero} {fear.after}.
{hero} was not afraid anymore, and {hero.they} {fear.after}.
The wish had come true: {hero} was brave. Now {hero.they} {fear.after}.

@table fear: of | need | tip | truth | after
the dark | Grandma asked for a jar of plums from the dark cellar
  | Count your steps out loud, and the dark will have to listen
  | The dark was only a quiet room with its eyes closed | fetched plums whenever Grandma asked
thunder | a storm rolled in, and the baby next door began to cry
  | Thunder is only the clouds moving their chairs, so clap right back at it
  | With every boom {hero} clapped, and soon the baby was laughing | clapped whenever it thundered
the high bridge | Grandpa was waiting with a birthday cake on the other side
  | Look at the far end, not at the water, and hum a tune
  | The bridge swung a little, like a hammock, and then {hero} was across | crossed the bridge
  every Sunday
the big dog next door | {hero.their} ball rolled into the big dog's yard
  | Stand still, hold out your hand, and say hello softly
  | The big dog wagged, gave back the ball, and licked {hero}'s nose | visited the big dog every day
singing in front of people | the school needed someone to sing the spring song
  | Find one friendly face and sing only to that one
  | The song came out clear and sweet, and the whole room clapped | sang at every party
spiders | a tiny spider was stuck in the bathtub
  | Look at it closely, and see how small it is
  | The spider tickled {hero.their} hand and climbed happily out the window
  | said good morning to every spider
the noises in the attic | something in the attic went bump, bump, bump
  | A noise is only a question, so go up and find the answer
  | In the attic sat a family of swallows, bumping about in an old hat box
  | took crumbs up to the swallows
the first day of school | the school bell rang for the very first time
  | Everyone in there is new as well, so be the first to smile
  | Inside there were paints and songs and a row of smiles | ran all the way to school
deep water | a little boy's hat blew out onto the deep water
  | Keep one hand on the rope and go slowly, slowly
  | The water was cool and kind, and {hero} brought back the hat | swam out to the buoy and back
ladders | a kitten was stuck on the roof
  | Look up and not down, one rung at a time
  | At the top the kitten jumped right into {hero.their} arms | climbed up to pick the highest
  apples
the old house on the corner | a letter came for the old house on the corner
  | Knock three times and say your name
  | The door opened, and there stood a little old lady with a plate of cookies
  | went there for cookies every Friday
geese | a row of geese stood in the middle of the path
  | Make yourself tall, spread your arms, and walk straight on
  | The geese looked, honked politely, and stepped aside | nodded to the geese each morning
the doctor | {hero} woke up with a very sore ear
  | Hold on to something soft and ask the doctor what each thing is for
  | The doctor had warm hands and a funny hat, and it was over before {hero} could count to five
  | wanted to become a doctor too
the howling wind | the wind blew the gate open, and the lambs ran out
  | Howl along with it, as loud as you can
  | Howling like a wolf, {hero} brought every lamb back home | sang along whenever the wind howled
the deep well | the bucket fell into the deep well on the hottest day of the year
  | Tie the rope twice, lean over once, and sing down to your own echo
  | The echo sang back so merrily that {hero} pulled up the bucket and laughed | drew water for the
  whole lane
bees | a swarm of bees settled on the baby carriage
  | Move as slowly as honey, and hum their own song to them
  | The bees crawled over {hero.their} sleeve like soft gold, and flew off to the linden tree
  | kept a hive behind the house
the barber | {hero.their} hair had grown right over {hero.their} eyes
  | Ask to hold the comb, and count the curls as they fall
  | Snip, snap, and the world was bright again | went to the barber alone
the cellar stairs | the lamp went out, and the candles were down below
  | Sit down and go one step at a time, on your bottom
  | Bump, bump, bump, and there were the candles, all in a row | slid down the stairs for fun
masks | the whole street came dancing past in masks
  | Ask each one who is inside, and they will have to tell
  | Behind the wolf was the baker, and behind the witch was Aunt Clara | wore the wildest mask of all
frogs | a frog sat in the watering can and would not leave
  | Let it sit on a leaf, and carry the leaf
  | The frog was cool and light, and it winked | invited the frogs to tea
sleeping away from home | Cousin Max asked {hero.them} to stay for the night
  | Take your own pillow, for home is wherever your pillow is
  | They whispered and giggled until the moon went by, and the morning came much too soon
  | packed the pillow every Saturday
the steep slide | all the others were waiting at the bottom of the steep slide
  | Sit, hold your knees, and let the slide do the work
  | Whoosh, went the wind, and {hero} wanted to go again before {hero.they} had even stopped
  | was always first in line
the ticking clock in the hall | midnight came, and {hero} was thirsty
  | Walk in time with it, for a clock only wants company
  | Tick, tock, went the clock, and step, step, went {hero}, all the way to the kitchen
  | wound the clock every Sunday

# ---- to see something wonderful -----------------------------------------------------------------
@rule plot_wonder
// {wonder_wish} {wonder_try} // {despair} {meet} {talk} {wonder_tip} //
  {wonder_go} {sight.comes}. {wonder_joy} {pet.may_joy} // {wonder_end} {bedtime}

@rule wonder_wish
2* {hero} had never seen {sight=sight}, and {hero.they} wished for it with all
  {hero.their} heart.
"Just once in my life," said {hero}, "I want to see {sight=sight}."
More than anything, {hero} wanted to see {sight=sight}.

@rule wonder_try
{^hero.they} waited for a whole day, but {sight.miss1}. {^hero.they} came back the next day, but
  {sight.miss2}.
The first time {hero.they} went to look, {sight.miss1}. The second time, {sight.miss2}.
On Friday {sight.miss1}. On Saturday {sight.miss2}.

@rule wonder_tip
"You have been looking in the wrong way," said the {helper}. "{sight.tip}."
"I know just how it is done," said the {helper}. "{sight.tip}."
"Such things come to those who wait well," said the {helper}. "{sight.tip}."

@rule wonder_go
So {hero} did just that.
{hero} did what the {helper} had said, and waited without a sound.
That is what {hero} did, and this time {hero.they} did not hurry.

@rule wonder_joy
"Oh!" whispered {hero}. It was [even better|more beautiful|more wonderful] than a dream.
{hero} forgot to breathe. It was [even better|more beautiful|more wonderful] than any picture.
"There it is!" cried {hero}, and {hero.their} eyes shone.

@rule wonder_end
{hero} never forgot {sight}, and told the story again and again.
Now {hero} knew that [patience|waiting quietly] is a kind of magic.
{hero} painted a picture of {sight} and hung it over the bed.
The wish had come true, and {hero} carried it home like a [candle|treasure].

@table sight: what | miss1 | miss2 | tip | comes
a shooting star | thick clouds covered the sky | {hero.they} fell asleep too early
  | Take a nap at noon, lie on your back at midnight, and do not blink
  | All at once a line of light ran across the sky, and then another
a rainbow | it rained without any sun | there was sun without any rain
  | Stand with the sun behind you just when the rain is ending
  | A great bright arch grew over the fields, with every color in it
a firefly | {hero.they} carried a lantern that was much too bright | the evening was much too cold
  | Wait for a warm night and leave your lantern at home
  | First one little light blinked in the grass, and then a hundred more
a baby deer | {hero.their} boots went crunch, crunch, crunch | {hero.they} sneezed
  | Take off your boots and sit as still as a tree
  | Out of the ferns stepped a baby deer with white spots and big wet eyes
a whale | the fog was as thick as soup | {hero.they} looked away to eat a sandwich
  | Look for a puff of steam, like the breath of a teapot
  | A great gray back rose out of the water and blew a fountain up to the sky
a kingfisher | {hero.they} talked the whole time | {hero.they} splashed with {hero.their} feet
  | Sit in the shade of the willow and be quiet as a fish
  | A flash of blue shot down to the water, brighter than any jewel
a snowflake up close | it melted on {hero.their} warm hand | it melted on {hero.their} warm nose
  | Catch it on a dark wool mitten and hold your breath
  | There on the mitten lay a star with six tiny arms, like lace
an owl at night | {hero.they} went to bed too soon | {hero.they} hooted so badly that it flew away
  | Listen first and look afterward
  | On the barn roof sat an owl, as white as milk, and blinked down slowly
the sunrise from the hilltop | {hero.they} got up too late | {hero.they} took the wrong path
  | Lay out your shoes tonight and follow the first birdsong
  | The sky turned pink and then gold, and the sun looked over the edge of the world
a butterfly coming out of its cocoon | nothing moved at all | {hero.they} poked it and it hid away
  | Do not touch it, and come back each morning with the sun
  | The cocoon cracked, and two wet orange wings slowly opened
the northern lights | the moon was too bright | {hero.they} ran home because {hero.their} toes
  were cold
  | Put on three pairs of socks and wait until the moon has set
  | Green and purple ribbons began to dance over the whole sky
a mother cat with her kittens | she heard {hero.them} running and hid | she heard {hero.them}
  calling and hid
  | Put down a bowl of milk, sit far away, and hum
  | The mother cat came out with five small kittens stumbling after her
a hedgehog eating supper | {hero.they} brought a barking dog along | {hero.they} stood with
  the wind behind {hero.them}
  | Put out a slice of pear, and hide downwind before it gets dark
  | Rustle, rustle, out of the hedge came a hedgehog and ate with its mouth open
a comet | a tall house stood in the way | {hero.they} looked to the west instead of the east
  | Climb the church tower before dawn and look to the east
  | There hung a star with a silver tail, as long as an arm
a swan learning to fly | {hero.they} threw bread and it stayed to eat | it was sitting behind the
  reeds
  | Come when the wind blows along the water, and bring no bread
  | A gray young swan ran over the water, beat its wings, and was in the air
a salmon leaping | {hero.they} watched the quiet end of the stream | {hero.they} blinked at the wrong
  moment
  | Stand by the falls after three days of rain
  | Out of the foam shot a silver fish, and it hung in the sun like a coin
the first snow | it fell while {hero.they} slept | it turned to rain
  | Watch the cows, for they lie down close together the night before
  | One flake sailed past, then ten, and then the whole sky was full of feathers
a bat waking up | {hero.they} came at noon with a drum | {hero.they} came at midnight, much too late
  | Wait below the eaves at the very moment when the lamps are lit
  | A bat unfolded like a tiny umbrella, yawned, and dropped into the dusk
an eclipse of the moon | {hero.they} mixed up the days | a fat cloud sat down on the moon
  | Ask the calendar twice, and go up where the clouds cannot follow
  | A brown shadow crept over the moon until it glowed like a copper pan
a spider weaving | {hero.they} leaned in too close and tore a thread | the web was done already
  | Get up with the sun, and look at the garden gate from a step away
  | Around and around went the spider, and behind her the web grew, ring upon ring
a waterfall in winter | the path was deep in snow | it was still splashing and roaring
  | Wait for the coldest week, and borrow some snowshoes
  | The whole waterfall stood still, a curtain of blue ice, and not a drop fell

# ---- to raise something -------------------------------------------------------------------------
@rule plot_grow
// {grow_wish} // {grow_try} {despair} // {meet} {talk} {grow_tip} // {grow_wait}
  {plant.grown}. {pet.glad} {thanks} // {grow_end} {bedtime}

@rule grow_wish
{one_day}, {hero} planted {plant=plant} and wished that it would grow.
{hero} found {plant=plant} in an old [tin|jar|drawer] and planted it.
  How {hero.they} wished it would grow!
For {hero.their} birthday, {hero} got {plant=plant}. "Grow, please grow," {hero.they} whispered to
  it.

@rule grow_try
{^hero.they} waited for a week, but nothing happened. Then {plant.trouble}.
Day after day {hero.they} looked, and there was only dirt. And then {plant.trouble}.
At first all went well. But one night {plant.trouble}.

@rule grow_tip
"Do not give up on it," said the {helper}. "{plant.tip}."
"I know this kind," said the {helper}. "{plant.tip}."
The {helper} bent down to look. "{plant.tip}," {helper.they} said.

@rule grow_wait
{hero} did so every single day.
From then on, {hero} took good care of it.
{hero} did what the {helper} had said, and waited, and waited some more.

@rule grow_end
{hero} shared {plant.share} with everyone around {place.the}.
{hero} gave {plant.share} to the {helper}, who had helped so much.
{hero} had learned that good things grow slowly. {^hero.they} saved one small seed for next year.

@table plant: what | trouble | tip | grown | share
a sunflower seed | the rain stopped and the ground turned to dust
  | Give it one cup of water each morning, and tell it a story
  | By August the sunflower was taller than the door, and it turned its face to the sun | the seeds
a pumpkin seed | the snails came and nibbled the first leaf
  | Lay a ring of eggshells around it, and the snails will stay away
  | By fall there was a pumpkin so big that {hero} could sit on it | pumpkin soup
an apple seed | a hard frost came and bit the little shoot
  | Wrap it in straw, like a baby in a blanket
  | Spring came, and then more springs, and at last the tree was full of red apples | the apples
a magic-looking bean | the wind knocked the little stem flat
  | Tie it to a stick, gently, so that it has a friend to lean on
  | Up and up climbed the bean, right past the window, with white flowers all the way
  | the beans
a tulip bulb | a squirrel dug it up and ran off with a piece
  | Plant it deeper this time, three hands down, and put a stone on top
  | In April a tulip opened, red as a lantern | the sight of it
a strawberry plant | the birds came and pecked the first berry
  | Hang up a bit of shiny ribbon, and the birds will keep away
  | In June the berries hung there, fat and sweet | the strawberries
a carrot seed | the weeds grew up all around it
  | Pull the weeds out after the rain, when the ground is soft
  | {hero} pulled and pulled, and out came a carrot as long as {hero.their} arm | carrot cake
a cherry stone | a goat ate the leaves
  | Build it a little fence, and new leaves will come
  | Years went by, and one summer the tree was bright with cherries | the cherries
a lemon seed | the house was too cold and the leaf turned yellow
  | Put it in the sunniest window and turn it a little each day
  | One day a lemon hung there, shining like a small sun | cold lemonade
a rosebush | little green bugs covered every bud
  | Ask the ladybugs to dinner, for they love such bugs
  | The ladybugs came and ate, and the roses opened, pink and sweet | the roses
an onion | a mole pushed it right out of the ground
  | Set a bottle in the earth, and the wind will hum the mole away
  | By July the onion was as big as {hero}'s head | onion pie
a watermelon seed | the sun burned the leaves until they curled
  | Hang a white sheet over it when the sun is high
  | By the end of summer there was a melon that two could hardly lift | the cold red slices
a grain of wheat | the sparrows came looking for breakfast
  | Put up an old coat on a stick, with a hat on top
  | One stalk became ten, and the ears turned as yellow as the sun | a small loaf of bread
a walnut | a dog dug a hole right beside it
  | Lay thorny twigs around it, and give the dog a bone
  | Many winters later the walnut tree had room for a swing and a nest | the walnuts
a lily of the valley | the ground was much too dry
  | Move it to the shade, where moss grows on the stones
  | One May morning there hung white bells, and the air smelled sweet | the smell of it
a pepper plant | it grew tall and would not bloom
  | Pinch off the very top, and it will remember what it wanted
  | White flowers came, and after them peppers, green and then red | stuffed peppers
a mint leaf | somebody stepped on it by mistake
  | Put the stem in a glass of water until it grows a beard
  | Soon there was mint in every corner, as fresh as rain | mint tea
)";

}  // namespace mr::story
